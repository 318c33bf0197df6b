-- ARGV: identity, incarnation, epoch, sequences (I6). Gives 1, or 0 when there was nothing to do.
local m = load(false)
if not m or fenced(m, ARGV[3]) then return 0 end
local seqs, early = ARGV[4], false
for at = 1, #seqs, 6 do
  local seq = unpack_at('<I6', seqs, at)
  if seq >= m.next then
    -- A master was lost with its entry, which will come back. More than a window can't be meant.
    if not find(m.early, seq) and #m.early < 6 * 65535 then
      m.early, early = m.early .. sub(seqs, at, at + 5), true
    end
  elseif seq >= m.base then
    local entry = call('LINDEX', KEYS[2], seq - m.base)
    if entry ~= '' and not is_received(entry) then
      call('LSET', KEYS[2], seq - m.base, flagged(entry))
    end
  elseif m.parked > 0 then
    local entry = call('HGET', KEYS[3], seq)
    if entry and not is_received(entry) then call('HSET', KEYS[3], seq, flagged(entry)) end
  end
end
if early or m.raised then save(m) end
return 1
