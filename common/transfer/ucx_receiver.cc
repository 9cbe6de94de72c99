#include "common/transfer/ucx_receiver.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/runtime/clock.h"
#include "common/transfer/ucx_peer.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {

absl::Status UcxReceiver::OnFrame(UcxPeer& peer, absl::string_view frame_bytes,
                                  const UcxMessage& message) {
  v1::KvFrame frame;
  if (!frame.ParseFromArray(frame_bytes.data(), static_cast<int>(frame_bytes.size()))) {
    return absl::InvalidArgumentError("a frame that does not parse");
  }
  if (listener_ == nullptr) return absl::OkStatus();
  const uint64_t receive_id = next_receive_++;
  const std::optional<ScatterList> place =
      listener_->OnFrame(peer.id, frame, message.data_bytes, receive_id);
  if (message.data_bytes == 0 || !place.has_value()) return absl::OkStatus();
  size_t place_bytes = 0;
  for (const absl::Span<std::byte> piece : *place) place_bytes += piece.size();
  TANDEM_CHECK(place_bytes == message.data_bytes, "a payload of ", message.data_bytes,
               " bytes was given ", place_bytes);
  if (message.rendezvous) {
    LandRendezvous(peer, receive_id, *place, message);
  } else {
    LandEager(receive_id, *place, message);
  }
  return absl::OkStatus();
}

void UcxReceiver::LandEager(uint64_t receive_id, const ScatterList& place,
                            const UcxMessage& message) {
  DevicePayloads* device = local_.options().device.get();
  const std::byte* from = static_cast<const std::byte*>(message.data);
  absl::Status status;
  for (const absl::Span<std::byte> piece : place) {
    if (device != nullptr && device->Holds(piece.data())) {
      const absl::Span<std::byte> twin = device->Twin(piece);
      std::memcpy(twin.data(), from, piece.size());
      status.Update(device->CopyFromTwin(piece));
    } else {
      std::memcpy(piece.data(), from, piece.size());
    }
    from += piece.size();
  }
  listener_->OnPayload(receive_id, status, {.began = round_began_, .landed = RealClock().Now()});
}

void UcxReceiver::LandRendezvous(UcxPeer& peer, uint64_t receive_id, const ScatterList& place,
                                 const UcxMessage& message) {
  auto receive = std::make_unique<UcxReceive>();
  receive->receiver = this;
  receive->peer = &peer;
  receive->over_shm = message.shm_peer != nullptr;
  receive->id = receive_id;
  receive->began = RealClock().Now();
  for (const absl::Span<std::byte> piece : place) {
    receive->pieces.push_back({piece.data(), piece.size()});
    receive->bytes += piece.size();
  }
  Start(std::move(receive), message);
}

void UcxReceiver::Start(std::unique_ptr<UcxReceive> receive, const UcxMessage& message) {
  UcxPeer& peer = *receive->peer;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                       UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.memory_type =
      local_.MemoryOf(static_cast<const std::byte*>(receive->pieces.front().buffer));
  param.cb.recv_am = &UcxReceiver::OnReceived;
  param.user_data = receive.get();
  void* buffer = receive->pieces[0].buffer;
  size_t count = receive->pieces[0].length;
  param.datatype = ucp_dt_make_contig(1);
  if (receive->pieces.size() > 1) {
    param.datatype = ucp_dt_make_iov();
    buffer = receive->pieces.data();
    count = receive->pieces.size();
  }
  ++peer.receives_in_flight;
  if (receive->over_shm) peer.shm->receives.insert(receive.get());
  UcxReceive* in_flight = receive.release();  // OnReceived takes it back
  const ucs_status_ptr_t result =
      ucp_am_recv_data_nbx(message.worker->handle(), message.data, buffer, count, &param);
  if (UCS_PTR_IS_PTR(result)) return;
  OnReceived(nullptr, UCS_PTR_STATUS(result), in_flight->bytes, in_flight);
}

void UcxReceiver::OnReceived(void* request, ucs_status_t status, size_t bytes, void* user_data) {
  std::unique_ptr<UcxReceive> receive(static_cast<UcxReceive*>(user_data));
  if (request != nullptr) ucp_request_free(request);
  if (receive->over_shm) receive->peer->shm->receives.erase(receive.get());
  absl::Status result;
  if (status != UCS_OK) {
    result = UcxError("receive", status);
  } else if (bytes != receive->bytes) {
    result = absl::DataLossError(absl::StrCat("received ", bytes, " bytes of ", receive->bytes));
  }
  UcxReceiver& receiver = *receive->receiver;
  receiver.Finish(std::move(receive), result);
}

void UcxReceiver::Finish(std::unique_ptr<UcxReceive> receive, const absl::Status& status) {
  --receive->peer->receives_in_flight;
  if (listener_ != nullptr) {
    listener_->OnPayload(receive->id, status,
                         {.began = receive->began, .landed = RealClock().Now()});
  }
}

}  // namespace tandem::transfer
