#include "common/transfer/ucx_sender.h"

#include <utility>

#include "common/transfer/ucx_message.h"
#include "common/transfer/ucx_peer.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {

void UcxSender::Start(std::unique_ptr<UcxSend> send, bool over_shm) {
  send->sender = this;
  send->over_shm = over_shm;
  UcxPeer& peer = *send->peer;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = send->memory;
  param.cb.send = &UcxSender::OnSent;
  param.user_data = send.get();
  param.datatype = ucp_dt_make_contig(1);
  const void* buffer = nullptr;
  size_t count = 0;
  if (send->pieces.size() == 1) {
    buffer = send->pieces[0].buffer;
    count = send->pieces[0].length;
  } else if (!send->pieces.empty()) {
    param.datatype = ucp_dt_make_iov();
    buffer = send->pieces.data();
    count = send->pieces.size();
  }
  ++peer.sends_in_flight;
  if (over_shm) peer.shm->sends.insert(send.get());
  UcxSend* in_flight = send.release();  // OnSent takes it back
  const ucs_status_ptr_t result =
      ucp_am_send_nbx((over_shm ? peer.shm->endpoint : peer.control).handle(), kUcxMessageId,
                      in_flight->header.data(), in_flight->header.size(), buffer, count, &param);
  if (UCS_PTR_IS_PTR(result)) return;
  OnSent(nullptr, UCS_PTR_STATUS(result), in_flight);
}

void UcxSender::OnSent(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<UcxSend> send(static_cast<UcxSend*>(user_data));
  if (request != nullptr) ucp_request_free(request);
  if (send->over_shm) send->peer->shm->sends.erase(send.get());
  absl::Status result;
  if (status == UCS_ERR_CANCELED) {
    result = absl::CancelledError("the connection was closed");
  } else if (status != UCS_OK) {
    result = UcxError("send", status);
  }
  UcxSender& sender = *send->sender;
  sender.Finish(std::move(send), result);
}

void UcxSender::Finish(std::unique_ptr<UcxSend> send, const absl::Status& status) {
  send->status = status;
  finished_.push_back(std::move(send));
}

bool UcxSender::RunCompletions() {
  if (finished_.empty()) return false;
  // Completions may send more; sends that finish meanwhile wait for the next call.
  for (std::unique_ptr<UcxSend>& send : std::exchange(finished_, {})) {
    if (send->peer != nullptr) --send->peer->sends_in_flight;
    if (send->done) send->done(send->status);
  }
  return true;
}

}  // namespace tandem::transfer
