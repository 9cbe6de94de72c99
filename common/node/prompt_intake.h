// How prefill and decode nodes take in a prompt: a command is refused, or its prompt is admitted at
// once, or it waits first until the prompt's beginning has come from storage (StoredBlocks), and
// then from another node (FetchedPrompts).
//
//   Take ─▶ refused
//    ├─▶ waits for storage ─▶ Take again, when StoredBlocks gives the command back
//    ├─▶ waits for another node ─▶ TakeFetched ─▶ refused, or admitted
//    └─▶ admitted
//
// Thread safety: none; one thread, the engine thread. Owner: PrefillCore or DecodeCore.
#pragma once

#include <optional>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/node/fetched_prompts.h"
#include "common/node/node_resources.h"
#include "common/node/sequence.h"

namespace tandem::node {

class PromptIntake {
 public:
  // A prompt that the core is to admit now.
  struct Prompt {
    SequenceInput input;
    absl::Duration time_allowed;
    absl::Time deadline;
    // What waited for the fetch of its beginning; nullopt: no fetch was tried.
    std::optional<FetchedPrompts::Waiting> waited;
  };
  // What a command of a router asks to be computed, checked as the core's role requires. `Command`,
  // here and below: v1::Prefill or v1::StartDecode.
  template <typename Command>
  using Parse = absl::FunctionRef<absl::StatusOr<SequenceInput>(RouterKey, const Command&)>;

  // `resources` outlive this.
  explicit PromptIntake(NodeResources& resources) : resources_(resources) {}

  // Takes a command, in place of an older attempt of its leg that waits. `arrived`: the prompt,
  // which may have waited for storage since. nullopt: the command was refused, or waits, or it is
  // no newer than one that waits.
  template <typename Command>
  std::optional<Prompt> Take(RouterKey router, const Command& command, absl::Time arrived,
                             absl::Time now, std::type_identity_t<Parse<Command>> parse);
  // The fetch under `lease` is over; `installed`: null unless all came. nullopt: the leg has ended,
  // or the prompt was refused. REQUIRES: `Command` is what the node's role takes.
  template <typename Command>
  std::optional<Prompt> TakeFetched(LeaseId lease, const transfer::LeaseInstalled* installed,
                                    absl::Time now, Parse<Command> parse);
  // Forgets a leg's waiting command of an older attempt than `attempt`. False if a command of this
  // attempt or a newer one waits.
  bool Drop(const LegKey& leg, uint32_t attempt);

 private:
  NodeResources& resources_;
};

}  // namespace tandem::node
