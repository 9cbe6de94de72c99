#include "router/core/running_requests.h"

namespace tandem::router {
namespace {

const char* NameOf(SequenceMachine::State state) {
  switch (state) {
    case SequenceMachine::State::kQueued:
      return "queued";
    case SequenceMachine::State::kReserving:
      return "reserving";
    case SequenceMachine::State::kPrefilling:
      return "prefilling";
    case SequenceMachine::State::kInstalling:
      return "installing";
    case SequenceMachine::State::kGenerating:
      return "generating";
    case SequenceMachine::State::kDone:
      return "done";
  }
  return "";
}

}  // namespace

v1::RunningRequest DescribeRunning(const SequenceMachine& sequence, absl::Time now) {
  v1::RunningRequest running;
  running.set_request_id(sequence.input().id.value());
  running.set_state(NameOf(sequence.state()));
  running.set_age_s(absl::ToDoubleSeconds(now - sequence.submitted()));
  running.set_prompt_tokens(static_cast<int32_t>(sequence.input().prompt->size()));
  running.set_output_tokens(static_cast<int32_t>(sequence.delivered_tokens()));
  const SequenceLegs& legs = sequence.legs();
  if (legs.decode().live()) {
    running.set_decode_node(legs.decode().node_id());
    if (legs.prefill().sent()) running.set_prefill_node(legs.prefill().node_id());
  }
  running.set_attempts(sequence.attempts());
  running.set_service_tier(sequence.tier().name);
  return running;
}

}  // namespace tandem::router
