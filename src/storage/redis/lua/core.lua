-- One queue is a meta string (KEYS[1]), a list of entries (KEYS[2]) and, seldom, a hash of entries
-- parked below the list (KEYS[3]). The list holds exactly the sequences base .. next-1; an entry
-- that was acknowledged behind one that was not is an empty string there until the list's head
-- passes it. The meta string is, little endian:
--   version B, incarnation c8, epoch c8 (big endian), exact term c8, next I6, base I6, told I6,
--   live I4, parked I4, then the numbers H of marks, runs, early marks and trimmed entries, and the
--   length H of the identity; the identity; marks (source c12, offset I8, index I4); runs (first
--   sequence I6, first id H, count H); early PUBREC marks (I6); trimmed in flight (I6).
-- ARGV[1] is the identity, ARGV[2] the incarnation.
-- Whatever is seldom needed is defined behind the way that is mostly taken: a script pays for every
-- function that it defines.
local pack, unpack_at, sub, call = struct.pack, struct.unpack, string.sub, redis.call
local FORM = '<Bc8c8c8I6I6I6I4I4HHHHH'
local ZERO = '\0\0\0\0\0\0\0\0'

-- Gives nil when there is no such queue, or one of another incarnation.
local function load(any)
  local s = call('GET', KEYS[1])
  if not s then return nil end
  local version, incarnation, epoch, exact, next, base, told, live, parked, marks, runs, early,
    trimmed, id, at = unpack_at(FORM, s)
  if version ~= 1 then error('SLUICE this queue was written by a later version') end
  local known = sub(s, at, at + id - 1)
  if known ~= ARGV[1] then error('SLUICE two ids share this key') end
  if not any and incarnation ~= ARGV[2] then return nil end
  local marks_at = at + id
  local runs_at = marks_at + marks * 24
  local early_at = runs_at + runs * 10
  local trimmed_at = early_at + early * 6
  return {
    incarnation = incarnation, epoch = epoch, exact = exact, next = next, base = base, told = told,
    live = live, parked = parked, id = known, raised = false,
    marks = sub(s, marks_at, runs_at - 1), runs = sub(s, runs_at, early_at - 1),
    early = sub(s, early_at, trimmed_at - 1), trimmed = sub(s, trimmed_at),
  }
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
