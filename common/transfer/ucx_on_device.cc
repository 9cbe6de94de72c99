#include "common/transfer/ucx_on_device.h"

#include <ucp/api/ucp.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {
namespace {

constexpr absl::Duration kTrialMax = absl::Seconds(10);

// One end of the trial. The receiving end reserves a place for the payload that arrives.
class TrialEnd final : public KvTransport::Listener {
 public:
  TrialEnd(std::unique_ptr<KvTransport> transport_in, PayloadStore& payloads,
           const PayloadCells& cells)
      : transport(std::move(transport_in)), payloads_(payloads), cells_(cells) {
    transport->SetListener(this);
  }
  ~TrialEnd() override { transport->SetListener(nullptr); }

  std::optional<ScatterList> OnFrame(PeerId, const v1::KvFrame& frame, size_t, uint64_t) override {
    absl::StatusOr<PayloadStore::Landing> place = payloads_.Reserve(cells_);
    if (!place.ok()) {
      End(place.status());
      return std::nullopt;
    }
    place_ = *std::move(place);
    checksum_ = frame.data().payload_checksum();
    return place_.bytes;
  }
  void OnPayload(uint64_t, const absl::Status& status, const ReceiveInterval&) override {
    End(status.ok() ? payloads_.Install(cells_, place_, checksum_, "", std::nullopt) : status);
    place_ = {};
  }
  void OnPeerLost(PeerId, const absl::Status& status) override { End(status); }

  void End(const absl::Status& status) {
    if (!result.has_value()) result = status;
  }

  const std::unique_ptr<KvTransport> transport;
  std::optional<absl::Status> result;

 private:
  PayloadStore& payloads_;
  const PayloadCells cells_;
  PayloadStore::Landing place_;
  uint64_t checksum_ = 0;
};

// Moves a payload of `range` from block 0 to block 1, through two transports of its own.
absl::Status TryPayload(const UcxOptions& options, const BlockRange& range) {
  DevicePayloads& device = *options.device;
  const std::vector<BlockId> blocks = {BlockId(0), BlockId(1)};
  const PayloadCells from = {range, absl::MakeConstSpan(&blocks[0], 1), 0};
  const PayloadCells to = {range, absl::MakeConstSpan(&blocks[1], 1), 0};
  ASSIGN_OR_RETURN(auto sending, NewUcxTransport(options));
  ASSIGN_OR_RETURN(auto receiving, NewUcxTransport(options));
  TrialEnd sender(std::move(sending), device, from);
  TrialEnd receiver(std::move(receiving), device, to);
  PeerAddress address;
  address.transport_address = receiver.transport->address();
  address.host = options.host;
  ASSIGN_OR_RETURN(const PeerId peer, sender.transport->Connect(address));
  ASSIGN_OR_RETURN(std::optional<PayloadStore::Outgoing> payload, device.Take(from));
  if (!payload.has_value())
    return absl::ResourceExhaustedError("the trial found no free device slot");
  v1::KvFrame frame;
  frame.mutable_data()->set_payload_checksum(payload->checksum);
  // A send that is given up ends when its transport does, after this function's other objects.
  const auto sent = std::make_shared<std::optional<absl::Status>>();
  sender.transport->Send(peer, frame, payload->bytes,
                         [sent](const absl::Status& status) { *sent = status; });
  const absl::Time give_up = RealClock().Now() + kTrialMax;
  while (!receiver.result.has_value() || !sent->has_value()) {
    if (sender.result.has_value()) return *sender.result;
    if (sent->has_value() && !(*sent)->ok()) return **sent;
    if (RealClock().Now() > give_up)
      return absl::DeadlineExceededError("the trial's payload did not arrive in time");
    sender.transport->Progress();
    receiver.transport->Progress();
  }
  return *receiver.result;
}

}  // namespace

absl::Status UcxCarriesCuda() {
  return UcxContext::Create("tcp", UcxContext::Memory::kHostAndCuda).status();
}

std::string DescribeUcx() {
  return absl::StrCat("UCX ", ucp_get_version_string(),
                      UcxCarriesCuda().ok() ? ", host and CUDA memory" : ", host memory only");
}

absl::Status TryUcxOnDevice(const UcxOptions& options) {
  const std::vector<BlockRange> ranges = options.device->TrialRanges();
  if (ranges.empty())
    return absl::ResourceExhaustedError("the trial needs two KV blocks, the arena has fewer");
  for (const BlockRange& range : ranges) {
    if (absl::Status status = TryPayload(options, range); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("a payload of ", range.layer_count,
                                       " layers between two places of the device by ",
                                       ucp_get_version_string(), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::transfer
