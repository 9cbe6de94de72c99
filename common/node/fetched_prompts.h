// Commands whose prompts' beginnings are being fetched from another node
// (common/node/prefix_fetch.h). A command waits here until its fetch is over, well or badly. Then
// the core computes the prompt, and finds what came as prefix cache.
//
//   WaitForFetch ─▶ waiting ─the fetch is over─▶ Take
//                      └─ Drop, OnRouterLost ─▶ gone; the fetch goes on, and what it brings is
//                      cached
//
// Thread safety: none; one thread, the engine thread. Owner: NodeResources.
#pragma once

#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/node/node_ledger.h"
#include "common/node/prefix_fetch.h"
#include "common/node/sequence.h"
#include "common/node/sequence_scheduler.h"

namespace tandem::node {

class FetchedPrompts {
 public:
  struct Waiting {
    LegKey leg;
    uint32_t attempt = 0;
    v1::NodeCommand command;  // Prefill or StartDecode
    absl::Duration time_allowed;
    absl::Time deadline;
    absl::Time arrived;  // its place: it may have waited for the disk before
    // What came, if something did. Set by Take.
    std::optional<v1::FetchedKv> fetched;

    // Whether the prompt is still to be computed. Errors: kUnavailable on a node that drains,
    // kDeadlineExceeded after the prompt's deadline.
    absl::Status StillWanted(bool draining, absl::Time now) const;
  };

  // `scheduler` and `fetch` outlive this.
  FetchedPrompts(SequenceScheduler& scheduler, PrefixFetch& fetch)
      : scheduler_(scheduler), fetch_(fetch) {}

  // Fetches the prompt's beginning if the command names a holder, and that saves work. True:
  // `command` waits, unless Drop takes it before, until Take returns it. Not for a prompt whose
  // tokens are to be scored: they must be computed. `time_allowed`: of the prompt.
  bool WaitForFetch(RouterKey router, const v1::Prefill& command, const SequenceInput& input,
                    absl::Duration time_allowed, absl::Time now);
  bool WaitForFetch(RouterKey router, const v1::StartDecode& command, const SequenceInput& input,
                    absl::Duration time_allowed, absl::Time now);
  // The command whose fetch, under `lease`, is over; nullopt if it has been dropped. `installed`:
  // how that lease ended, if all came.
  std::optional<Waiting> Take(LeaseId lease, const transfer::LeaseInstalled* installed);
  // Forgets a leg's waiting command of an older attempt than `attempt`. False if a command of this
  // attempt or a newer one waits.
  bool Drop(const LegKey& leg, uint32_t attempt);
  void OnRouterLost(RouterKey router);

  bool idle() const { return waiting_.empty(); }

 private:
  // Asks for what `command` (Prefill or StartDecode) names; nullopt if nothing is to be fetched.
  template <typename Command>
  std::optional<LeaseId> Begin(RouterKey router, const Command& command, const SequenceInput& input,
                               absl::Duration time_allowed, absl::Time now);

  // The place for the command that waits.
  v1::NodeCommand& Wait(LeaseId lease, Waiting waiting);

  SequenceScheduler& scheduler_;
  PrefixFetch& fetch_;
  // Bound: PrefixFetch::kFetchesMax (64).
  std::map<LeaseId, Waiting> waiting_;
};

}  // namespace tandem::node
