// Commands of a broken or hostile router: names, leases and epochs near those that exist, and now
// and then a number out of its range. For fuzz targets of the nodes' cores.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
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
    switch (random_.Below(14)) {
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
      case 8:
      case 9:
        SetLend(*command.mutable_lend_blocks());
        break;
      case 10:
      case 11:
        SetAnswer(*command.mutable_loan_answer());
        break;
      case 12:
        SetSend(*command.mutable_send_blocks());
        break;
      default:
        if (random_.Below(2) == 0) break;  // no command at all
        command.mutable_borrow_blocks()->set_blocks(static_cast<int64_t>(Number(8)));
        command.mutable_borrow_blocks()->set_creditor_node_id("c");
        break;
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
    run.set_borrow_blocks_max(static_cast<int64_t>(Number(12)));
    run.set_arrived_us(static_cast<int64_t>(Number(4)));
    run.set_first_token_due_us(DueUs(run.arrived_us()));
    if (random_.Below(2) == 0) run.set_prefill_blocks(static_cast<int64_t>(Number(12)));
  }
  // None, already, past, and as far off as can be said. Without a choice of its own, so that the
  // corpus keeps its meaning.
  static int64_t DueUs(int64_t chosen) {
    constexpr std::array<int64_t, 4> kDue = {0, 1, -1, std::numeric_limits<int64_t>::max()};
    return kDue[static_cast<size_t>(chosen) % kDue.size()];
  }
  // Of few blocks, so that some are here already.
  std::string Hashes(uint64_t count) {
    std::string hashes;
    for (uint64_t i = 0; i < count; ++i)
      hashes.append(16, static_cast<char>('a' + random_.Below(6)));
    return hashes;
  }
  // A unit is a block.
  void SetLend(v1::LendBlocks& lend) {
    lend.set_debtor_node_id("x");
    lend.set_debtor_incarnation(random_.Below(2));
    lend.set_loan(Number(6));
    lend.set_first_unit(Int(3));
    lend.set_units(Int(5));
    const uint64_t count = random_.Below(8) == 0
                               ? random_.Below(5)
                               : static_cast<uint64_t>(std::clamp(lend.units(), 0, 4));
    lend.set_hashes(Hashes(count));
    lend.set_arrived_us(static_cast<int64_t>(Number(4)));
    if (random_.Below(2) == 0) lend.set_from_node_id("c");
  }
  void SetAnswer(v1::LoanAnswer& answer) {
    answer.set_loan(1 + Number(8));
    if (random_.Below(4) == 0) answer.mutable_status()->set_code(Int(17));
    if (random_.Below(4) != 0) answer.set_creditor_node_id("c");
    answer.set_units(Int(5));
    answer.set_held_blocks(random_.Below(2) == 0 ? answer.units() : Int(5));
    answer.set_lease_id(Number(6));
    answer.set_epoch(static_cast<uint32_t>(Number(3)));
  }
  void SetSend(v1::SendBlocks& send) {
    send.set_lease_id(Number(8));
    send.set_epoch(static_cast<uint32_t>(Number(3)));
    send.set_fetch(random_.Below(8) != 0);
    send.set_lent(random_.Below(2) == 0);
    send.set_hashes(Hashes(random_.Below(3)));
    send.set_receiver_node_id("d");
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
    if (random_.Below(2) == 0) prefill.set_lent_units(Int(4));
    prefill.set_borrow_blocks_max(static_cast<int64_t>(Number(12)));
    prefill.set_arrived_us(static_cast<int64_t>(Number(4)));
    prefill.set_first_token_due_us(DueUs(prefill.arrived_us()));
  }

  Random& random_;
};

}  // namespace tandem::fuzz
