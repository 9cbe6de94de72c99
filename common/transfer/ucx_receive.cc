// Messages on their way in: parsing, greetings, and landing payloads where the listener says.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_transport_impl.h"

namespace tandem::transfer {
namespace {

// kind | origin | connection
constexpr size_t kPrefixBytes = 1 + 2 * sizeof(uint64_t);
// Messages dropped between two log lines.
constexpr int64_t kLogEveryDrops = 1000;

void AppendNumber(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint64_t NumberAt(absl::string_view bytes, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

absl::Status UcxTransport::Start() {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = static_cast<unsigned>(MessageKind::kFrame);
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = &UcxTransport::OnMessage;
  param.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_->handle(), &param);
  if (status != UCS_OK) return UcxError("ucp_worker_set_am_recv_handler", status);
  return absl::OkStatus();
}

std::string UcxTransport::MessageHeader(MessageKind kind, uint64_t connection,
                                        absl::string_view rest) const {
  std::string header(1, static_cast<char>(kind));
  AppendNumber(header, origin_);
  AppendNumber(header, connection);
  absl::StrAppend(&header, rest);
  return header;
}

ucs_status_t UcxTransport::OnMessage(void* self, const void* header, size_t header_bytes,
                                     void* data, size_t data_bytes,
                                     const ucp_am_recv_param_t* param) {
  return static_cast<UcxTransport*>(self)->Receive(
      absl::string_view(static_cast<const char*>(header), header_bytes), data, data_bytes, param);
}

void UcxTransport::DropMessage(absl::string_view why) {
  if (dropped_messages_++ % kLogEveryDrops != 0) return;
  Log(LogLevel::kWarning, "KV message dropped", {{"reason", why}, {"dropped", dropped_messages_}});
}

// Returning UCS_OK without a receive drops the payload, wherever it is.
ucs_status_t UcxTransport::Receive(absl::string_view header, void* data, size_t data_bytes,
                                   const ucp_am_recv_param_t* param) {
  if (header.size() < kPrefixBytes) {
    DropMessage("header too short");
    return UCS_OK;
  }
  const uint64_t origin = NumberAt(header, 1);
  const uint64_t connection = NumberAt(header, 1 + sizeof(uint64_t));
  const absl::string_view rest = header.substr(kPrefixBytes);
  const auto kind = static_cast<MessageKind>(header[0]);
  if (kind == MessageKind::kHello) {
    OnHello(origin, connection, rest);
    return UCS_OK;
  }
  const auto it = by_origin_.find(origin);
  if (it == by_origin_.end()) {
    DropMessage("from a peer that did not greet, or is gone");
    return UCS_OK;
  }
  if (kind == MessageKind::kFrame) return ReceiveFrame(*it->second, rest, data, data_bytes, param);
  if (kind == MessageKind::kBye) {
    Lose(*it->second, absl::UnavailableError("the peer closed the connection"), /*silent=*/false);
    return UCS_OK;
  }
  DropMessage("unknown kind of message");
  return UCS_OK;
}

void UcxTransport::OnHello(uint64_t origin, uint64_t connection, absl::string_view address) {
  const absl::StatusOr<UcxAddress> parsed = UcxAddress::Parse(address);
  if (!parsed.ok() || parsed->origin != origin || origin == origin_ || connection == 0) {
    DropMessage("a greeting that is damaged");
    return;
  }
  if (const auto it = by_origin_.find(origin); it != by_origin_.end()) {
    Peer& known = *it->second;
    if (known.remote_connection == 0) known.remote_connection = connection;
    if (known.remote_connection == connection) return;
    Lose(known, absl::UnavailableError("the peer connected anew"), /*silent=*/false);
  }
  Peer* peer = AddPeer(*parsed);
  peer->remote_connection = connection;
  const absl::Status opened = OpenEndpoint(*peer);
  if (!opened.ok()) Lose(*peer, opened, /*silent=*/true);
}

ucs_status_t UcxTransport::ReceiveFrame(Peer& peer, absl::string_view frame_bytes, void* data,
                                        size_t data_bytes, const ucp_am_recv_param_t* param) {
  v1::KvFrame frame;
  if (!frame.ParseFromArray(frame_bytes.data(), static_cast<int>(frame_bytes.size()))) {
    DropMessage("a frame that does not parse");
    return UCS_OK;
  }
  if (listener_ == nullptr) return UCS_OK;
  const uint64_t receive_id = next_receive_++;
  const std::optional<ScatterList> place =
      listener_->OnFrame(peer.id, frame, data_bytes, receive_id);
  if (data_bytes == 0 || !place.has_value()) return UCS_OK;
  size_t place_bytes = 0;
  for (const absl::Span<std::byte> piece : *place) place_bytes += piece.size();
  TANDEM_CHECK(place_bytes == data_bytes, "a payload of ", data_bytes, " bytes was given ",
               place_bytes);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    LandRendezvous(peer, receive_id, *place, data);
  } else {
    LandEager(receive_id, *place, data);
  }
  return UCS_OK;
}

void UcxTransport::LandEager(uint64_t receive_id, const ScatterList& place, const void* data) {
  const std::byte* from = static_cast<const std::byte*>(data);
  for (const absl::Span<std::byte> piece : place) {
    std::memcpy(piece.data(), from, piece.size());
    from += piece.size();
  }
  listener_->OnPayload(receive_id, absl::OkStatus());
}

void UcxTransport::LandRendezvous(Peer& peer, uint64_t receive_id, const ScatterList& place,
                                  void* data) {
  auto request = std::make_unique<ReceiveRequest>();
  request->transport = this;
  request->peer = &peer;
  request->id = receive_id;
  for (const absl::Span<std::byte> piece : place) {
    request->pieces.push_back({piece.data(), piece.size()});
    request->bytes += piece.size();
  }
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
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
  ReceiveRequest* in_flight = request.release();  // OnReceiveDone takes it back
  const ucs_status_ptr_t result =
      ucp_am_recv_data_nbx(worker_->handle(), data, buffer, count, &param);
  if (UCS_PTR_IS_PTR(result)) return;
  OnReceiveDone(nullptr, UCS_PTR_STATUS(result), in_flight->bytes, in_flight);
}

void UcxTransport::OnReceiveDone(void* request, ucs_status_t status, size_t bytes,
                                 void* user_data) {
  const std::unique_ptr<ReceiveRequest> receive(static_cast<ReceiveRequest*>(user_data));
  if (request != nullptr) ucp_request_free(request);
  UcxTransport* transport = receive->transport;
  --receive->peer->receives_in_flight;
  if (receive->peer->lost) transport->peers_changed_ = true;
  absl::Status result;
  if (status != UCS_OK) {
    result = UcxError("receive", status);
  } else if (bytes != receive->bytes) {
    result = absl::DataLossError(absl::StrCat("received ", bytes, " bytes of ", receive->bytes));
  }
  if (transport->listener_ != nullptr) transport->listener_->OnPayload(receive->id, result);
}

}  // namespace tandem::transfer
