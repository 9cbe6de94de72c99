// A synchronous client of one router, for the commands. Errors of all calls: the router's status,
// or kUnavailable with the address. Thread safety: all methods from any thread. Owner: a command.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct ClientOptions {
  std::string api_key;  // sent with every call; empty = none
  rpc::TlsTrust tls;
};

// Ends a call from another thread. It serves one call at a time.
// Thread safety: any thread. Owner: the caller, who keeps it until the call has returned.
class Cancellation {
 public:
  // Ends the call that runs now, and the next ones, until Reset.
  void Cancel();
  void Reset();
  bool cancelled() const;

 private:
  friend class Attachment;
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> end_call_ ABSL_GUARDED_BY(mutex_);
};

class Client {
 public:
  // `router`: host:port. Connects lazily; kUnavailable by the first call names the address.
  // `api_key`: sent with every call; empty = none.
  static std::unique_ptr<Client> Create(const std::string& router, const std::string& api_key = "");
  // The same; uses TLS when `options` names trusted certificates. Errors: as
  // rpc::ChannelCredentials.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& router,
                                                         const ClientOptions& options);
  virtual ~Client() = default;

  // Streams an answer. `on_part` sees every message in order; when it returns false, the client
  // cancels the answer and returns OK.
  virtual absl::Status Generate(
      const v1::GenerateRequest& request,
      const std::function<bool(const v1::GenerateResponse&)>& on_part) = 0;
  // The same, until `cancellation` ends it with kCancelled.
  virtual absl::Status Generate(const v1::GenerateRequest& request,
                                const std::function<bool(const v1::GenerateResponse&)>& on_part,
                                Cancellation& cancellation) = 0;
  virtual absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) = 0;
  virtual absl::StatusOr<v1::DetokenizeResponse> Detokenize(
      const v1::DetokenizeRequest& request) = 0;
  virtual absl::StatusOr<v1::GetModelResponse> GetModel() = 0;
  // The same, until `cancellation` ends it with kCancelled.
  virtual absl::StatusOr<v1::GetModelResponse> GetModel(Cancellation& cancellation) = 0;
  virtual absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout) = 0;
  // At most `limit` requests that the router serves now, the oldest first. `timeout`: of the call.
  virtual absl::StatusOr<v1::ListRequestsResponse> ListRequests(int32_t limit,
                                                                absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::RequestTrace> GetTrace(const std::string& request_id) = 0;
};

}  // namespace tandem::cli
