-- The rest of a page: behind entries that were trimmed or parked.
-- Nothing above was sent on this connection: what was trimmed there never will be.
if #m.trimmed > 0 then
  local kept = ''
  for at = 1, #m.trimmed, 6 do
    if unpack_at('<I6', m.trimmed, at) <= after then
      kept = kept .. sub(m.trimmed, at, at + 5)
    else
      reply[3] = reply[3] + 1
    end
  end
  if reply[3] > 0 then
    m.trimmed = kept
    save(m)
  end
end
for _, seq in ipairs(parked(m)) do
  if seq > after then
    local entry = call('HGET', KEYS[3], seq)
    if full(entry) then return reply end
    n, reply[4] = n + 1, reply[4] + 1
    reply[#reply + 1] = seq
    reply[#reply + 1] = entry
  end
end
return listed()
