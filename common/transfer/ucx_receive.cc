// Messages on their way in: parsing, greetings, and landing payloads where the listener says.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_transport_impl.h"

namespace tandem::transfer {
namespace {

// kind | origin | connection
constexpr size_t kConnectionAt = 1 + sizeof(uint64_t);
constexpr size_t kPrefixBytes = kConnectionAt + sizeof(uint64_t);
// Messages dropped between two log lines.
constexpr int64_t kLogEveryDrops = 1000;

void AppendHeaderNumber(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint64_t NumberAt(absl::string_view bytes, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::string UcxTransport::MessageHeader(MessageKind kind, uint64_t connection,
                                        absl::string_view rest) const {
  std::string header(1, static_cast<char>(kind));
  AppendHeaderNumber(header, origin_);
  AppendHeaderNumber(header, connection);
  absl::StrAppend(&header, rest);
  return header;
}

// Returning UCS_OK without a receive drops the payload, wherever it is.
ucs_status_t UcxTransport::OnControlMessage(void* transport, const void* header,
                                            size_t header_bytes, void* data, size_t data_bytes,
                                            const ucp_am_recv_param_t* param) {
  UcxTransport& self = *static_cast<UcxTransport*>(transport);
  self.Receive({.worker = self.control_.get(),
                .lane_of = nullptr,
                .header = absl::string_view(static_cast<const char*>(header), header_bytes),
                .data = data,
                .data_bytes = data_bytes,
                .rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0});
  return UCS_OK;
}

ucs_status_t UcxTransport::OnShmMessage(void* peer, const void* header, size_t header_bytes,
                                        void* data, size_t data_bytes,
                                        const ucp_am_recv_param_t* param) {
  Peer& lane_of = *static_cast<Peer*>(peer);
  lane_of.transport->Receive(
      {.worker = lane_of.shm->worker.get(),
       .lane_of = &lane_of,
       .header = absl::string_view(static_cast<const char*>(header), header_bytes),
       .data = data,
       .data_bytes = data_bytes,
       .rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0});
  return UCS_OK;
}

void UcxTransport::DropMessage(absl::string_view why) {
  if (dropped_messages_++ % kLogEveryDrops != 0) return;
  Log(LogLevel::kWarning, "KV message dropped", {{"reason", why}, {"dropped", dropped_messages_}});
}

void UcxTransport::Receive(const Message& message) {
  if (message.header.size() < kPrefixBytes) {
    DropMessage("header too short");
    return;
  }
  const auto kind = static_cast<MessageKind>(message.header[0]);
  const uint64_t origin = NumberAt(message.header, 1);
  if (kind == MessageKind::kHello && message.lane_of == nullptr) {
    OnHello(origin, NumberAt(message.header, kConnectionAt), message.header.substr(kPrefixBytes));
    return;
  }
  const auto it = by_origin_.find(origin);
  if (it == by_origin_.end() || (message.lane_of != nullptr && message.lane_of != it->second)) {
    DropMessage("from a peer that did not greet, or is gone");
    return;
  }
  if (kind == MessageKind::kFrame) {
    ReceiveFrame(*it->second, message);
  } else {
    ReceiveGreeting(kind, *it->second, message);
  }
}

void UcxTransport::ReceiveGreeting(MessageKind kind, Peer& peer, const Message& message) {
  const uint64_t connection = NumberAt(message.header, kConnectionAt);
  // Of a connection that was given up since.
  if (connection != peer.connection && connection != peer.remote_connection) return;
  if (kind == MessageKind::kReady) {
    if (peer.state == Peer::State::kWelcomed) OnReady(peer, message.lane_of != nullptr);
  } else if (kind == MessageKind::kWelcome && message.lane_of == nullptr) {
    OnWelcome(peer, connection, message.header.substr(kPrefixBytes));
  } else if (kind == MessageKind::kBye && message.lane_of == nullptr) {
    Lose(peer, absl::UnavailableError("the peer closed the connection"), /*silent=*/false);
  } else {
    DropMessage("unknown kind of message");
  }
}

void UcxTransport::ReceiveFrame(Peer& peer, const Message& message) {
  const absl::string_view frame_bytes = message.header.substr(kPrefixBytes);
  v1::KvFrame frame;
  if (!frame.ParseFromArray(frame_bytes.data(), static_cast<int>(frame_bytes.size()))) {
    DropMessage("a frame that does not parse");
    return;
  }
  if (listener_ == nullptr) return;
  const uint64_t receive_id = next_receive_++;
  const std::optional<ScatterList> place =
      listener_->OnFrame(peer.id, frame, message.data_bytes, receive_id);
  if (message.data_bytes == 0 || !place.has_value()) return;
  size_t place_bytes = 0;
  for (const absl::Span<std::byte> piece : *place) place_bytes += piece.size();
  TANDEM_CHECK(place_bytes == message.data_bytes, "a payload of ", message.data_bytes,
               " bytes was given ", place_bytes);
  if (message.rendezvous) {
    LandRendezvous(peer, receive_id, *place, message);
  } else {
    LandEager(receive_id, *place, message);
  }
}

ucs_memory_type_t UcxTransport::MemoryOf(const std::byte* piece) const {
  const bool cuda = options_.device != nullptr && options_.device->Holds(piece) &&
                    !options_.device->host_addressable();
  return cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

void UcxTransport::LandEager(uint64_t receive_id, const ScatterList& place,
                             const Message& message) {
  const std::byte* from = static_cast<const std::byte*>(message.data);
  absl::Status status;
  for (const absl::Span<std::byte> piece : place) {
    if (options_.device != nullptr && options_.device->Holds(piece.data())) {
      const absl::Span<std::byte> twin = options_.device->Twin(piece);
      std::memcpy(twin.data(), from, piece.size());
      status.Update(options_.device->CopyFromTwin(piece));
    } else {
      std::memcpy(piece.data(), from, piece.size());
    }
    from += piece.size();
  }
  listener_->OnPayload(receive_id, status, {.began = round_began_, .landed = RealClock().Now()});
}

void UcxTransport::LandRendezvous(Peer& peer, uint64_t receive_id, const ScatterList& place,
                                  const Message& message) {
  auto request = std::make_unique<ReceiveRequest>();
  request->transport = this;
  request->peer = &peer;
  request->over_shm = message.lane_of != nullptr;
  request->id = receive_id;
  request->began = RealClock().Now();
  for (const absl::Span<std::byte> piece : place) {
    request->pieces.push_back({piece.data(), piece.size()});
    request->bytes += piece.size();
  }
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                       UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.memory_type = MemoryOf(place.front().data());
  param.cb.recv_am = &UcxTransport::OnReceiveDone;
  param.user_data = request.get();
  void* buffer = request->pieces[0].buffer;
  size_t count = request->pieces[0].length;
  param.datatype = ucp_dt_make_contig(1);
  if (request->pieces.size() > 1) {
    param.datatype = ucp_dt_make_iov();
    buffer = request->pieces.data();
    count = request->pieces.size();
  }
  ++peer.receives_in_flight;
  if (request->over_shm) peer.shm->receives.insert(request.get());
  ReceiveRequest* in_flight = request.release();  // OnReceiveDone takes it back
  const ucs_status_ptr_t result =
      ucp_am_recv_data_nbx(message.worker->handle(), message.data, buffer, count, &param);
  if (UCS_PTR_IS_PTR(result)) return;
  OnReceiveDone(nullptr, UCS_PTR_STATUS(result), in_flight->bytes, in_flight);
}

void UcxTransport::OnReceiveDone(void* request, ucs_status_t status, size_t bytes,
                                 void* user_data) {
  std::unique_ptr<ReceiveRequest> receive(static_cast<ReceiveRequest*>(user_data));
  if (request != nullptr) ucp_request_free(request);
  UcxTransport* transport = receive->transport;
  if (receive->over_shm) receive->peer->shm->receives.erase(receive.get());
  absl::Status result;
  if (status != UCS_OK) {
    result = UcxError("receive", status);
  } else if (bytes != receive->bytes) {
    result = absl::DataLossError(absl::StrCat("received ", bytes, " bytes of ", receive->bytes));
  }
  transport->FinishReceive(std::move(receive), result);
}

void UcxTransport::FinishReceive(std::unique_ptr<ReceiveRequest> request,
                                 const absl::Status& status) {
  --request->peer->receives_in_flight;
  if (request->peer->lost) peers_changed_ = true;
  if (listener_ != nullptr) {
    listener_->OnPayload(request->id, status,
                         {.began = request->began, .landed = RealClock().Now()});
  }
}

}  // namespace tandem::transfer
