-- Empty strings in the list.
local function dead(m)
  return m.next - m.base - m.live + m.parked
end

-- The parked sequences, rising.
local function parked(m)
  if m.parked == 0 then return {} end
  local seqs = {}
  for at, field in ipairs(call('HKEYS', KEYS[3])) do seqs[at] = tonumber(field) end
  table.sort(seqs)
  return seqs
end

-- Lets the list begin with something that is owed.
local function behead(m)
  if m.live == m.parked then
    if m.next > m.base then call('DEL', KEYS[2]) end
    m.base = m.next
  end
  while dead(m) > 0 do
    local head, gone = call('LRANGE', KEYS[2], 0, 31), 0
    for _, entry in ipairs(head) do
      if entry ~= '' then break end
      gone = gone + 1
    end
    if gone > 0 then call('LTRIM', KEYS[2], gone, -1) end
    m.base = m.base + gone
    if gone < 32 then break end
  end
end

-- The lowest sequence that is owed, or the next one.
local function floor(m)
  return parked(m)[1] or m.base
end

-- Whether a numbered list of the meta string has it; 6 bytes each.
local function find(list, seq)
  for at = 1, #list, 6 do
    if unpack_at('<I6', list, at) == seq then return at end
  end
  return nil
end

local function without(list, at, size)
  return sub(list, 1, at - 1) .. sub(list, at + size)
end

local function flagged(entry)
  return string.char(string.byte(entry) + 1) .. sub(entry, 2)
end

-- The first bit of an entry: PUBREC came for it.
local function is_received(entry)
  return string.byte(entry) % 2 == 1
end
