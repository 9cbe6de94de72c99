// The sequences that wait for placement, in the order in which they are tried.
//
// Tenants take turns: each has a counter of the nodes' time that was predicted for it, divided by
// its weight, and the lowest counter comes first. So tenants that all have sequences waiting get
// nodes' time in proportion to their weights, however much each asks for, and one that asks for
// little is placed past any other's backlog. A tenant that comes back begins where the others are:
// it neither gains from the time that it was away, nor pays for what it got while it was alone. But
// what it got beyond the others' counters it owes, though it has no request for a moment. Debts are
// forgotten when no tenant has a request.
// (This is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models",
// OSDI 2024, with times for tokens.) A router without tenants has one line.
//
// Within a tenant's line priority counts as time: a level is worth a fixed wait, so every sequence
// grows more urgent while it waits, and no priority starves another. But for late ones
// the order in a line does not change while sequences wait, because all of them age alike.
//
// A sequence may have a goal: the time at which its first token is wanted. Those of a tenant whose
// goals are in reach come first, in the order of those times. One that cannot meet its goal any
// more is late: it goes behind them, and so do those that have no goal, in the order in which they
// came. So a queue that is longer than what can be computed in time costs only what is in excess,
// and not everything. Late ones do not starve: the first of them has its tenant's next turn when
// the prompts that passed it have kLatePart times its tokens. So late ones get a fixed part of what
// is computed, however long they are.
//
// A sequence that finds no room blocks only those that need the same room. The attempt tells the
// largest room that there is: sequences that need more are passed over without being tried, and
// those that need less are still tried. Once a sequence has waited for long, one decode node is
// kept for it: nothing younger is placed there, until what runs there has made enough room. So
// small sequences cannot starve it, and go on elsewhere.
//
// A walk does a bounded amount of work, in two parts. The first begins at the front, so that new
// room is offered to those that come first. If a bound ends it, the second goes on where the last
// walk stopped, and leaves out the tenants whose sequences all had their turn in this round of
// walks. So a round reaches every sequence, however many before it find no room and however many
// tenants they are of.
//
// Thread safety: none; RequestTable owns it.
// Invariants: each sequence is in it at most once; a tenant's line exists between Join and Leave;
// round_turns_ is a part of turns_.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "router/core/serial.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

class AdmissionQueue {
 public:
  // Placements that find no room, and those that no node would begin in time, each of which weighed
  // all nodes; sequences that are looked at; and placements that are tried in vain for any reason,
  // in one part of a walk. Then the part ends.
  static constexpr int kFailedMax = 8;
  static constexpr int kTooLateMax = 16;
  static constexpr int kVisitedMax = 512;
  static constexpr int kVainMax = 128;
  // Placements tried in one walk.
  static constexpr int kTriedMax = 2 * kVainMax;
  // How many times the tokens of a tenant's first late sequence others get before it has a turn.
  static constexpr int kLatePart = 32;
  // After waiting this long for room, a sequence has a node kept for it.
  static constexpr absl::Duration kKeepRoomAfter = absl::Seconds(1);
  // Sequences for which nodes are kept in one walk.
  static constexpr int kKeptMax = 16;
  // Tenants without a request of which it is remembered what they owe. Then those that owe least
  // are forgotten.
  static constexpr int kOwingMax = 4096;

  // A sequence's position in the line; the lowest is tried first.
  struct Position {
    absl::Time rank;  // RankOf; of one whose goal is in reach, later by the goal
    Serial serial = 0;
    bool late = false;  // it cannot meet a goal, or has none: behind all that can
    friend bool operator<(const Position& a, const Position& b) {
      return std::tuple(a.late, a.rank, a.serial) < std::tuple(b.late, b.rank, b.serial);
    }
  };
  // The rank of a request that arrived at `arrived`. `level`: what one level of priority is worth;
  // `most`: what all levels together are worth at most, so that a newcomer passes no sequence that
  // is older by more than twice that.
  static absl::Time RankOf(absl::Time arrived, int32_t priority, absl::Duration level,
                           absl::Duration most);

  static constexpr int64_t kAnyRoom = std::numeric_limits<int64_t>::max();
  // The result of trying to place a sequence: why it stays queued (nullopt: it was placed, or has
  // failed), and, with kNoRoom, the most tokens that a node has room for, apart from nodes that are
  // kept.
  struct Attempt {
    std::optional<PlacementFailure> failure;
    int64_t room = kAnyRoom;
  };
  // What the walk asks of the sequences' owner.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Tokens that a node must have room for at least; 0 if that is not known. Then the sequence is
    // tried even if others found no room.
    virtual int64_t TokensNeeded(Serial serial) = 0;
    // Tokens that a node that is kept for it must come to have room for. One node is kept for all
    // that need as many. 0: it avoids nodes, so a node that is kept for another may be no use to
    // it.
    virtual int64_t TokensToKeep(Serial serial) = 0;
    // Tokens of its prompt, whether a node holds them or not.
    virtual int64_t PromptTokens(Serial serial) = 0;
    virtual Attempt TryToPlace(Serial serial) = 0;
    // The sequence was placed and has left the queue. May change the queue.
    virtual void OnPlaced(Serial serial) = 0;
    virtual absl::Duration Waited(Serial serial) = 0;
    // Keeps a node's room from the sequences that are tried after this one in this walk.
    virtual void KeepRoomFor(Serial serial) = 0;
  };

  // A request of the tenant begins; `weight` > 0 counts from now on. Leave: it has ended, and none
  // of its sequences waits.
  void Join(const std::string& tenant, double weight);
  void Leave(const std::string& tenant);
  // Work was given to nodes for the tenant, `us` microseconds of their time (PlacedWork).
  // REQUIRES: one of its requests has joined; us >= 0.
  void Charge(const std::string& tenant, double us);
  // Tenants of which requests have joined.
  size_t tenants() const { return lines_.size(); }
  // Others, of which it is remembered what they owe. At most kOwingMax.
  size_t tenants_owing() const { return owing_.size(); }

  // REQUIRES: as Charge.
  void Insert(const std::string& tenant, const Position& position);
  // Does nothing for a sequence that is not in the queue.
  void Erase(const std::string& tenant, const Position& position);
  bool Contains(const std::string& tenant, const Position& position) const;
  size_t size() const { return size_; }
  // Calls visit(serial) for those of the tenant that come before `position`, until it returns
  // false.
  void VisitBefore(const std::string& tenant, const Position& position,
                   absl::FunctionRef<bool(Serial)> visit) const;
  // The same for all of the tenant's, the last first.
  void VisitBackwards(const std::string& tenant, absl::FunctionRef<bool(Serial)> visit) const;
  // The tenant with the most sequences in the queue, divided by its weight; nullptr: the queue is
  // empty. Cost: the tenants of which requests have joined.
  const std::string* LargestTenant() const;
  // Whether `a` has more sequences in the queue than `b`, each divided by its tenant's weight.
  bool HasMore(const std::string& a, const std::string& b) const;

  // Walks the queue and tries to place its sequences, within the bounds above. What this round of
  // walks has not tried when a bound ends the walk, the next walks go on with.
  // Cost: at most 2 * kFailedMax placements that find no room and kTriedMax of any kind; a sequence
  // that is passed over costs Owner::TokensNeeded and its tenant's turn.
  void PlaceAll(Owner& owner);
  // How often a sequence was inserted.
  uint64_t inserted() const { return inserted_; }

 private:
  // Why a part of a walk ended: every sequence had its turn; a bound; nothing can be placed at all.
  enum class PartEnd { kAll, kBound, kNothing };
  // What one walk has found so far.
  struct Walk {
    int tried = 0;                                        // in the walk
    int visited = 0, failed = 0, too_late = 0, vain = 0;  // in its part
    bool resumes = false;                                 // it is in its second part
    bool over = false;
    // No node has room for more. A sequence that needs more is not tried.
    int64_t room = kAnyRoom;
    // The sequences for which nodes are kept, and the least that any of them needs: those behind
    // that need as much wait behind them.
    // Bound: kKeptMax (16).
    std::vector<Serial> kept;
    int64_t kept_least = kAnyRoom;
  };
  struct Line {
    // Bound: --queue-max, all lines together.
    absl::btree_set<Position> positions;
    int64_t requests = 0;
    double weight = 1;
    double counter = 0;  // nodes' time for the tenant, in microseconds, over its weight
    bool aside = false;  // out of turns_ until a walk's next turns
    // The sequence that was tried last, in walk `walk`; and in the second parts of the walks of
    // round `round`.
    Position tried_last, resume_after;
    uint64_t walk = 0, round = 0;
    // The round in which all of its sequences had their turn.
    uint64_t done_round = 0;
    // Tokens of the prompts that were placed while a late one waited, since a late one was placed.
    // When they are enough a late one is tried before all others, once in a walk's first part: in
    // `late_walk` it was. The first one is; or if that found no room, the one after `late_tried`.
    int64_t passed = 0;
    uint64_t late_walk = 0;
    std::optional<Position> late_tried;

    double SizeByWeight() const { return static_cast<double>(positions.size()) / weight; }
  };
  // The order of turns: the tenant with the lowest counter first. Ties go by name.
  using Turn = std::pair<double, std::string>;

  // Changes a line and keeps turns_ as it says.
  template <typename Change>
  void Alter(const std::string& tenant, Change change);
  PartEnd WalkPart(Owner& owner, Walk& walk);
  // The late sequence of the line that is to be tried before others now.
  std::optional<Position> LateTurn(const Line& line, Owner& owner, const Walk& walk) const;
  // A sequence with a prompt of `tokens` was placed.
  static void CountPassed(const Position& placed, int64_t tokens, Line& line);
  // The first sequence of the line after those that had their turn.
  std::optional<Position> NextOf(const Line& line, Owner& owner, const Walk& walk) const;
  // The sequence had its turn and stays.
  void NoteTried(const std::string& tenant, const Position& position, Owner& owner,
                 const Walk& walk);
  void SetAside(const std::string& tenant, bool aside);
  // Tries one sequence; true: it was placed.
  bool Try(Serial serial, Owner& owner, Walk& walk);
  // Keeps a node for the sequence, if it has waited for long and those before it that have one need
  // more.
  void KeepRoom(Serial serial, Owner& owner, Walk& walk);
  void Remember(const std::string& tenant, double counter);
  // What the tenant owes, if that is remembered; then it is remembered no longer.
  std::optional<double> Recall(const std::string& tenant);

  // Bound: --requests-max, because each has a request.
  std::map<std::string, Line> lines_;
  // The lines that have a turn; and of these the ones whose sequences have not all had theirs in
  // this round.
  // Bound: the lines with sequences that wait.
  absl::btree_set<Turn> turns_, round_turns_;
  // The counters of tenants without requests, as far as they are above floor_; and the lowest
  // first. Bound: kOwingMax (4,096) each.
  absl::flat_hash_map<std::string, double> owing_;
  absl::btree_set<Turn> owing_least_;
  size_t size_ = 0;
  uint64_t inserted_ = 0;
  // The counter that a tenant's line begins with: that of the tenant that had the last turn.
  double floor_ = 0;
  // The walk and the round of walks that runs, or ran last.
  uint64_t walk_ = 0, round_ = 1;
  // For which the second parts of this round's walks kept nodes, in their order.
  // Bound: kKeptMax (16).
  std::vector<Serial> kept_before_;
};

}  // namespace tandem::router
