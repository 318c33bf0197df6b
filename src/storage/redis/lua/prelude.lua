-- One queue is a meta string (KEYS[1]), a list of entries (KEYS[2]) and, seldom, a hash of entries
-- parked below the list (KEYS[3]). The list holds exactly the sequences base .. next-1; an entry
-- that was acknowledged behind one that was not is an empty string there until the list's head
-- passes it. The meta string is, little endian:
--   version B, incarnation c8, epoch c8 (big endian), exact term c8, next I6, base I6, told I6,
--   live I4, parked I4, then the numbers H of marks, runs, early marks and trimmed entries, and the
--   length H of the identity; the identity; marks (source c12, offset I8, index I4); runs (first
--   sequence I6, first id H, count H); early PUBREC marks (I6); trimmed in flight (I6).
-- ARGV[1] is the identity, ARGV[2] the incarnation.
local pack, unpack_at, sub, call = struct.pack, struct.unpack, string.sub, redis.call
local FORM = '<Bc8c8c8I6I6I6I4I4HHHHH'
local ZERO = '\0\0\0\0\0\0\0\0'

-- Gives nil when there is no such queue, or one of another incarnation.
local function load(any)
  local s = call('GET', KEYS[1])
  if not s then return nil end
  local m = {}
  local version, marks, runs, early, trimmed, id, at
  version, m.incarnation, m.epoch, m.exact, m.next, m.base, m.told, m.live, m.parked, marks, runs,
    early, trimmed, id, at = unpack_at(FORM, s)
  if version ~= 1 then error('SLUICE this queue was written by a later version') end
  m.id = sub(s, at, at + id - 1)
  if m.id ~= ARGV[1] then error('SLUICE two ids share this key') end
  if not any and m.incarnation ~= ARGV[2] then return nil end
  at = at + id
  m.marks = sub(s, at, at + marks * 24 - 1)
  at = at + marks * 24
  m.runs = sub(s, at, at + runs * 10 - 1)
  at = at + runs * 10
  m.early = sub(s, at, at + early * 6 - 1)
  at = at + early * 6
  m.trimmed = sub(s, at)
  return m
end

local function save(m)
  call('SET', KEYS[1], pack(FORM, 1, m.incarnation, m.epoch, m.exact, m.next, m.base, m.told,
    m.live, m.parked, #m.marks / 24, #m.runs / 10, #m.early / 6, #m.trimmed / 6, #m.id)
    .. m.id .. m.marks .. m.runs .. m.early .. m.trimmed)
end

-- Whether the caller's epoch is older than the queue's; a newer one is taken over.
local function fenced(m, epoch)
  if epoch == m.epoch or epoch == ZERO then return false end
  local high, low = unpack_at('>I4I4', epoch)
  local mine_high, mine_low = unpack_at('>I4I4', m.epoch)
  if high < mine_high or (high == mine_high and low < mine_low) then return true end
  m.epoch, m.raised = epoch, true
  return false
end

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
