// Frames that no honest node would send: of every kind, to leases that exist and leases that do
// not, of stale and future epochs, of wrong sizes, and repetitions of frames heard before. Frames
// made with the fleet's secret never carry DATA that the lease's rightful sender could have sent,
// because a process that holds the secret can send wrong KV and no check can notice.
// Thread safety: none.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/runtime/random.h"
#include "tandem/v1/kv.pb.h"

namespace tandem::testing {

class HostileFrames {
 public:
  // `knows`: the fleet's secret. `cell_bytes`: of one block in one layer. `payload_max`: what is
  // sent beside a frame at most.
  HostileFrames(Random& random, bool knows, uint64_t cell_bytes, size_t payload_max)
      : random_(random), knows_(knows), cell_bytes_(cell_bytes), payload_max_(payload_max) {}

  // One to `receiver`, of a lease whose id is most likely near `next_id`.
  v1::KvFrame Next(Incarnation receiver, uint64_t next_id) {
    v1::KvFrame frame;
    if (!heard_.empty() && random_.Below(8) == 0) frame = heard_[random_.Below(heard_.size())];
    frame.set_sender_incarnation(100 + random_.Below(5));
    frame.set_receiver_incarnation(random_.Below(8) == 0 ? random_.Below(200) : receiver.value());
    frame.set_lease_id(LeaseIdNear(next_id));
    frame.set_epoch(Odd(1 + static_cast<uint32_t>(random_.Below(3))));
    AddKind(frame);
    return frame;
  }
  // Sent again, at times, under the names that Next() gives.
  void Heard(const v1::KvFrame& frame) {
    heard_.push_back(frame);
    if (heard_.size() > 16) heard_.pop_front();
  }
  // Bytes to send with the frame: often as many as it says.
  size_t PayloadOf(const v1::KvFrame& frame) {
    if (!frame.has_data()) return random_.Below(16) / 15;
    const uint64_t claimed = frame.data().payload_bytes();
    return claimed > 0 && claimed <= payload_max_ && random_.Below(4) > 0
               ? claimed
               : random_.Below(payload_max_) + 1;
  }

 private:
  uint32_t Odd(uint32_t sensible) {
    static constexpr uint32_t kOdd[] = {0, 1, 2, 3, 6, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    return random_.Below(4) == 0 ? kOdd[random_.Below(std::size(kOdd))] : sensible;
  }
  void AddKind(v1::KvFrame& frame) {
    switch (random_.Below(6)) {
      case 0:
        AddData(frame);
        break;
      case 1:
        frame.mutable_fin()->set_data_frames(Odd(static_cast<uint32_t>(random_.Below(20))));
        break;
      case 2:
        AddNack(*frame.mutable_nack());
        break;
      case 3:
        frame.mutable_ack();
        break;
      case 4:
        frame.mutable_abort()->set_reason(std::string(random_.Below(300), '\xff'));
        frame.mutable_abort()->set_from_receiver(random_.Below(2) == 0);
        break;
      default:
        frame.mutable_channel()->set_number(random_.Below(4));
        frame.mutable_channel()->set_kind(static_cast<v1::KvChannel::Kind>(random_.Below(6)));
        frame.mutable_channel()->set_id(std::string(random_.Below(64), 'i'));
        break;
    }
  }
  // Most likely one that was opened a moment ago, so that its sender has not spoken yet.
  uint64_t LeaseIdNear(uint64_t next_id) {
    const uint64_t choice = random_.Below(8);
    if (choice == 0) return random_.Next();
    const uint64_t span = choice < 4 ? 40 : 3;
    return (next_id > span ? next_id - span : 0) + random_.Below(span + span / 2 + 1);
  }
  void AddData(v1::KvFrame& frame) {
    v1::KvData& data = *frame.mutable_data();
    data.set_first_ordinal(Odd(static_cast<uint32_t>(random_.Below(10))));
    data.set_ordinal_count(Odd(1 + static_cast<uint32_t>(random_.Below(4))));
    data.set_first_layer(Odd(static_cast<uint32_t>(random_.Below(3))));
    data.set_layer_count(Odd(1 + static_cast<uint32_t>(random_.Below(3))));
    const uint64_t right = uint64_t{data.ordinal_count()} * data.layer_count() * cell_bytes_;
    data.set_payload_bytes(random_.Below(2) == 0 ? right : random_.Below(payload_max_));
    data.set_payload_checksum(random_.Next());
    // See above: with the secret, something about it must be wrong.
    if (knows_ && data.payload_bytes() == right) data.set_payload_bytes(right + 1);
  }
  void AddNack(v1::KvNack& nack) {
    for (uint64_t n = random_.Below(200); n > 0; --n) {
      v1::KvRange& range = *nack.add_missing();
      range.set_first_ordinal(Odd(static_cast<uint32_t>(random_.Below(10))));
      range.set_ordinal_count(Odd(1));
      range.set_first_layer(Odd(0));
      range.set_layer_count(Odd(3));
    }
  }

  Random& random_;
  const bool knows_;
  const uint64_t cell_bytes_;
  const size_t payload_max_;
  std::deque<v1::KvFrame> heard_;
};

}  // namespace tandem::testing
