// The sequences of one request: which of them run, and which wait for the leader's prompt.
// Thread safety: none; who has the router's turn owns it through the core.
// Invariants: held ⊆ live; the leader, the lowest live serial, is never held; by_index names
// exactly the live ones.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "router/core/beam_search.h"
#include "router/core/router_core.h"

namespace tandem::router {

// Names one sequence of one request; rises with admission, so that every walk is reproducible.
using Serial = uint64_t;

// A request that is searched: its sequences are one step of its running beams.
struct BeamRun {
  BeamRun(RequestInput input, absl::Time now, BeamSearch beam_search)
      : base(std::move(input)), submitted(now), search(std::move(beam_search)) {}

  const RequestInput base;
  const absl::Time submitted;
  BeamSearch search;
  uint32_t steps = 0;
  RequestDone first;     // of the first step, which computed the prompt
  bool aborted = false;  // no step follows
};

struct RequestGroup {
  RequestId id;
  std::string trace_id;
  int32_t first_index = 0;       // the sequences' indices are first_index, first_index + 1, ...
  std::vector<Serial> by_index;  // [sequence index - first_index]; 0 = not running (any more)
  // Bound: the sequences of the request, 128.
  absl::btree_set<Serial> live;    // running or queued
  absl::btree_set<Serial> held;    // wait until the leader's prompt is installed
  std::optional<NodeKey> home;     // the decode node where it was, last
  std::unique_ptr<BeamRun> beams;  // null unless the request is searched

  Serial leader() const { return *live.begin(); }
  // 0 when there is none.
  Serial Find(int32_t sequence_index) const {
    const int64_t at = int64_t{sequence_index} - first_index;
    return at >= 0 && at < static_cast<int64_t>(by_index.size()) ? by_index[at] : 0;
  }
};

}  // namespace tandem::router
