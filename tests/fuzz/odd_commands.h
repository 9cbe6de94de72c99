// Commands of a broken or hostile router: names, leases and epochs near those that exist, and now
// and then a number out of its range. For fuzz targets of the nodes' cores.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/runtime/random.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::fuzz {

class OddCommands {
 public:
  explicit OddCommands(Random& random) : random_(random) {}

  v1::NodeCommand Next() {
    v1::NodeCommand command;
    switch (random_.Below(9)) {
      case 0:
      case 1:
      case 2:
        SetRun(*command.mutable_start_decode());
        break;
      case 3:
      case 4:
      case 5:
        SetPrefill(*command.mutable_prefill());
        break;
      case 6:
        SetLeg(*command.mutable_new_epoch()->mutable_leg());
        command.mutable_new_epoch()->set_lease_id(Number(6));
        command.mutable_new_epoch()->set_epoch(static_cast<uint32_t>(Number(4)));
        command.mutable_new_epoch()->set_local_prefill_tokens_max(Int(40));
        break;
      case 7:
        SetLeg(*command.mutable_abort()->mutable_leg());
        break;
      default:
        break;  // no command at all
    }
    return command;
  }
  // Usually in [0, below); otherwise a number on which programs often fail.
  uint64_t Number(uint64_t below) {
    static constexpr uint64_t kOdd[] = {0,          0x7FFFFFFF,        0x80000000,
                                        0xFFFFFFFF, ~uint64_t{0} >> 1, ~uint64_t{0}};
    return random_.Below(64) == 0 ? kOdd[random_.Below(std::size(kOdd))] : random_.Below(below);
  }
  int32_t Int(uint64_t below) { return static_cast<int32_t>(Number(below)); }
  double Real() {
    static constexpr double kOdd[] = {
        0, -1, 1e300, -1e300, 1e-300, __builtin_nan(""), __builtin_inf()};
    return random_.Below(32) == 0 ? kOdd[random_.Below(std::size(kOdd))]
                                  : 0.25 * static_cast<double>(random_.Below(20));
  }

 private:
  void SetLeg(v1::Leg& leg) {
    leg.set_request_id(absl::StrCat("r", random_.Below(6)));
    leg.set_sequence_index(Int(2));
    leg.set_attempt(static_cast<uint32_t>(Number(4)));
    leg.set_number(leg.attempt() % 2);  // 0 names no sequence of a router
  }
  void SetSequence(v1::SequenceSpec& sequence) {
    const bool alike = random_.Below(2) == 0;  // such prompts share blocks, and parts of blocks
    for (uint64_t i = random_.Below(90); i > 0; --i)
      sequence.add_prompt(alike ? sequence.prompt_size() % 40 : Int(40));
    sequence.set_delivered_tokens(Int(3));
    v1::SamplingParams& sampling = *sequence.mutable_sampling();
    sampling.set_seed(random_.Below(4));
    if (random_.Below(4) == 0) sampling.set_temperature(static_cast<float>(Real()));
    if (random_.Below(4) == 0) sampling.set_top_p(static_cast<float>(Real()));
    if (random_.Below(4) == 0) sampling.set_top_k(Int(50));
    if (random_.Below(4) == 0) sampling.set_logprobs(Int(21));
    sequence.mutable_stop()->set_max_tokens(Int(12));
    if (random_.Below(4) == 0) sequence.mutable_stop()->set_min_tokens(Int(12));
    if (random_.Below(4) == 0) sequence.add_eos_token_ids(Int(300));
    if (random_.Below(4) == 0) sequence.set_cache_salt("salt");
    if (random_.Below(8) == 0) sequence.mutable_guided()->set_regex("a*");
    sequence.set_priority(Int(3));
    if (random_.Below(6) == 0) sequence.set_prompt_logprobs(Int(3));
  }
  void SetRun(v1::StartDecode& run) {
    run.set_forks_follow(random_.Below(2) == 0);
    SetLeg(*run.mutable_leg());
    SetSequence(*run.mutable_sequence());
    run.set_local_prefill_tokens_max(random_.Below(2) == 0 ? -1 : Int(40));
    run.set_deadline_s(Real());
  }
  void SetPrefill(v1::Prefill& prefill) {
    SetLeg(*prefill.mutable_leg());
    SetSequence(*prefill.mutable_sequence());
    prefill.set_lease_id(Number(6));
    prefill.set_epoch(static_cast<uint32_t>(Number(4)));
    prefill.set_first_ordinal(Int(5));
    prefill.set_receiver_node_id("d");
    prefill.set_receiver_incarnation(random_.Below(3));
    prefill.set_receiver_address("address");
    prefill.set_receiver_host("host");
    prefill.set_deadline_s(Real());
  }

  Random& random_;
};

}  // namespace tandem::fuzz
