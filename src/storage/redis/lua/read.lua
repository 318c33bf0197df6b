-- ARGV: identity, incarnation, epoch, after, most messages, about so many bytes. Gives next, depth,
-- dropped, how many pairs of parked sequence and entry follow, those, the sequence of the first
-- listed entry, and the listed entries, of which empty ones are gone; or 0.
local m = load(false)
if not m or fenced(m, ARGV[3]) then return 0 end
local after, most, bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local reply, n, size = { m.next, m.live, 0, 0 }, 0, 0
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
local function full(entry)
  size = size + #entry
  return n > 0 and (n >= most or size > bytes)
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
local at = math.max(after + 1 - m.base, 0)
reply[#reply + 1] = m.base + at
local length, step = m.next - m.base, math.min(most, 32)
while at < length do
  local out = #reply
  for _, entry in ipairs(call('LRANGE', KEYS[2], at, at + step - 1)) do
    if entry ~= '' then
      if full(entry) then return reply end
      n = n + 1
    end
    out = out + 1
    reply[out] = entry
  end
  at = at + step
end
return reply
