// One completion or chat request while it is answered: starts a session for each of its prompts,
// takes their parts from the router, and writes them to the client on its connection's I/O
// thread, as events or as one object.
//
// While the client's socket is full, parts wait here, at most kPartsMax of them; then the session
// is ended, as over gRPC. What has gathered goes out in one write.
//
// Thread safety: Offer, Ended and Flush from any thread, the rest on the I/O thread (or as if
// there: HttpExchange::RunOrPost). Lifetime: shared by the exchange (until the answer is complete
// or the client gone) and the sessions' sinks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "router/front_end/answer_session.h"
#include "router/front_end/http/answer_format.h"
#include "router/front_end/http/http_exchange.h"
#include "router/front_end/http/part_buffer.h"

namespace tandem::router {

class ApiAnswer final : public PendingAnswer, public std::enable_shared_from_this<ApiAnswer> {
 public:
  struct Options {
    AnswerHead head;
    HttpHeaders headers;                             // of the reply
    std::function<void(const UsageTotals&)> charge;  // at the end of a complete answer; may be null
  };

  // Answers `api` over `exchange`, at once when it is refused.
  static void Start(ApiRequest api, std::shared_ptr<HttpExchange> exchange,
                    const AnswerSession::Deps& deps, Options options, const Arrival& arrival);

  ApiAnswer(std::shared_ptr<HttpExchange> exchange, bool stream, Options options,
            std::unique_ptr<AnswerFormat> format)
      : exchange_(std::move(exchange)),
        stream_(stream),
        options_(std::move(options)),
        format_(std::move(format)) {}

  // Takes a part of prompt number `prompt`; room is left in it. False: too many wait. It is written
  // after the next Flush.
  bool Offer(size_t prompt, v1::GenerateResponse& part);
  // The session of that prompt has ended.
  void Ended(const absl::Status& status);
  // Writes what was taken, if it is not to gather further: on the I/O thread or, if `inline_ok` and
  // it is at nothing, on the calling one.
  void Flush(bool inline_ok);

  void OnGone() override;
  void OnWritable() override { Drain(/*woken=*/false); }

 private:
  // Parts a client may leave unread before its request, and it alone, is ended.
  static constexpr size_t kPartsMax = 16384;
  // A whole object is not urgent: its parts are gathered in larger heaps.
  static constexpr size_t kHeap = 1024;

  void StartSessions(const std::vector<v1::GenerateRequest>& requests,
                     const AnswerSession::Deps& deps, const Arrival& arrival);
  // `woken`: a Flush asked for it.
  void Drain(bool woken);
  // Appends what `taken_` says.
  void Format(std::string& events);
  // `events`: what is still to be sent before the end.
  void BeginStream(absl::string_view events);
  void Complete(std::string& events);
  void Fail(const absl::Status& status, std::string& events);
  HttpReply NewReply(std::string content_type, std::string body) const;
  void CancelSessions();

  const std::shared_ptr<HttpExchange> exchange_;
  const bool stream_;
  bool writes_start_ = false;  // an event says that a choice begins; fixed before sessions start
  const Options options_;
  const std::unique_ptr<AnswerFormat> format_;
  // Bound: one for each prompt, kPromptsMax (1,024).
  std::vector<std::shared_ptr<AnswerSession>> sessions_;
  size_t running_ = 0;      // sessions without an end
  bool streaming_ = false;  // the reply's head is out
  bool done_ = false;       // replied, or the client is gone
  PartBuffer taken_;        // what Drain writes

  absl::Mutex mutex_;
  PartBuffer parts_ ABSL_GUARDED_BY(mutex_);  // at most kPartsMax; then the answer is cancelled
  // Bound: one for each session.
  std::vector<absl::Status> ends_ ABSL_GUARDED_BY(mutex_);
  bool due_ ABSL_GUARDED_BY(mutex_) = false;    // what waits shall be written
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;  // a Drain is on its way
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;   // nothing is taken any more
};

}  // namespace tandem::router
