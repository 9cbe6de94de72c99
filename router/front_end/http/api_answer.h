// Answers one completion, chat or response request: starts a session for each of its prompts, takes
// their parts from the router, and writes them to the client on the connection's I/O thread, as
// events or as one object.
//
// While the client's socket is full, parts wait here, at most kPartsMax of them. Beyond that the
// answer ends the session, as the gRPC front end does. Parts that gathered go out in one write.
//
// Thread safety: Offer, Ended and Flush from any thread; the other methods on the I/O thread, or in
// work that HttpExchange::RunOrPost runs.
// Owner: shared by the exchange (until the answer is complete or the client gone) and the sinks of
// the sessions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "router/front_end/answer_session.h"
#include "router/front_end/http/answer_format.h"
#include "router/front_end/http/api_dialect.h"
#include "router/front_end/http/batch_budget.h"
#include "router/front_end/http/http_exchange.h"
#include "router/front_end/http/part_buffer.h"

namespace tandem::router {

class ApiAnswer final : public PendingAnswer, public std::enable_shared_from_this<ApiAnswer> {
 public:
  struct Options {
    AnswerHead head;
    HttpHeaders headers;  // of the reply
    ErrorForm error_form = {};
    // Bounds what the answers to batches hold; shared by all answers. Null: nothing does.
    std::shared_ptr<BatchBudget> batches = nullptr;
  };

  // Starts to answer `api` over `exchange`. A request that is refused is answered at once.
  // `on_long_work`: the calling thread is not the exchange's I/O thread, which then begins what is
  // ready.
  static void Start(ApiRequest api, std::shared_ptr<HttpExchange> exchange,
                    const AnswerSession::Deps& deps, Options options, const Arrival& arrival,
                    bool on_long_work);

  ApiAnswer(std::shared_ptr<HttpExchange> exchange, bool stream, Options options,
            std::unique_ptr<AnswerFormat> format)
      : exchange_(std::move(exchange)),
        stream_(stream),
        options_(std::move(options)),
        format_(std::move(format)),
        share_(options_.batches) {}

  // Takes the contents of a part of prompt number `prompt`, to be written after the next Flush. May
  // leave reusable memory in `part`. False: too many parts wait, and the session must end.
  bool Offer(size_t prompt, v1::GenerateResponse& part);
  // A session has ended, with `status`.
  void Ended(const absl::Status& status);
  // Writes the parts that were taken, unless more of them should gather first. The calling thread
  // writes if `inline_ok`, formatting them takes little time, and the I/O thread is idle; else the
  // I/O thread does.
  void Flush(bool inline_ok);

  void OnGone() override;
  void OnWritable() override { Drain(/*woken=*/false); }

 private:
  // Parts a client may leave unread before its request, and it alone, is ended.
  static constexpr size_t kPartsMax = 16384;
  // Sequences of one answer that wait for the core.
  static constexpr int64_t kSequencesAhead = 64;
  // Parts that gather before a write, if the client does not stream: its object is not urgent.
  static constexpr size_t kGatheredParts = 1024;
  // What a thread other than the I/O thread formats: some 40 µs. The core's thread is one, and
  // while it formats, no request goes on.
  static constexpr int64_t kInlineCostMax = 8192;

  // Makes a session for each request: all are valid, and what they may come to hold together has
  // room, or the answer is to fail. Tokenizes prompts.
  absl::Status MakeSessions(const std::vector<v1::GenerateRequest>& requests,
                            const AnswerSession::Deps& deps, const Arrival& arrival);
  // Answers with the sessions that were made, or with the reason why there are none.
  void Begin(const absl::Status& made);
  // Begins sessions until about kSequencesAhead sequences wait for the core to take them. So a
  // large batch does not stand in the core's queue as a whole, before what others ask meanwhile.
  absl::Status BeginSessions();
  // Whether writing what waits now takes little time.
  bool IsQuick() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `woken`: called because of a Flush.
  void Drain(bool woken);
  // Appends the parts in `taken_` as events.
  void Format(std::string& events);
  // In the following, `events` are those to send before the end.
  void BeginStream(absl::string_view events);
  void Complete(std::string& events);
  void Fail(const absl::Status& status, std::string& events);
  HttpReply NewReply(std::string content_type, std::string body) const;
  void CancelSessions();
  // Frees what was formatted, on this thread: the last owner of this answer may be the core's.
  void Release();

  const std::shared_ptr<HttpExchange> exchange_;
  const bool stream_;
  // Whether the end repeats all parts, as one object or as the last event of a stream; whether
  // other events may, too. Fixed before sessions start.
  bool repeats_all_ = false, repeats_early_ = false;
  const Options options_;
  std::unique_ptr<AnswerFormat> format_;  // null once done_
  // Bound: one for each prompt, kPromptsMax (1,024).
  std::vector<std::shared_ptr<AnswerSession>> sessions_;
  BatchShare share_;        // what they may come to hold; until this answer is destroyed
  bool started_ = false;    // Begin was called
  size_t begun_ = 0;        // sessions; those behind wait for BeginSessions
  size_t running_ = 0;      // begun sessions without an end
  bool streaming_ = false;  // the reply's head is out
  bool done_ = false;       // replied, or the client is gone
  PartBuffer taken_;        // the parts that Drain writes

  absl::Mutex mutex_;
  PartBuffer parts_ ABSL_GUARDED_BY(mutex_);  // at most kPartsMax; then the answer is cancelled
  // Whether parts are formatted as they come. An event that announces an answer waits for the
  // answer's first text or end: a request that is refused in the queue gets a status of its own.
  bool writes_ ABSL_GUARDED_BY(mutex_) = true;
  // Of formatting the parts that wait; of all parts, and what else the end repeats.
  int64_t cost_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t repeated_cost_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bound: one for each session.
  std::vector<absl::Status> ends_ ABSL_GUARDED_BY(mutex_);
  // Bound: one for each session. The sequences of each that the core has not taken yet.
  std::vector<int32_t> ahead_ ABSL_GUARDED_BY(mutex_);
  int64_t sequences_ahead_ ABSL_GUARDED_BY(mutex_) = 0;  // their sum
  bool due_ ABSL_GUARDED_BY(mutex_) = false;             // a Flush wants what waits to be written
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;           // a Drain was posted and has not run
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;            // takes no more parts
};

}  // namespace tandem::router
