// One request from whichever front end: checks it, tokenizes it, hands it to the router, and
// turns what the core answers into the parts its client sees. A front end only carries those parts,
// so the same request gets the same stream over every protocol.
//
//   Start ─▶ (Submit) ─▶ Accepted ─▶ OnEvent… ─▶ the sink's OnEnd
//
// A request may have several answers (sequences), each with text, end and stop string of its own;
// the stream ends with the last of them.
//
// Thread safety: Start and Cancel from any thread; the rest in the router's turn. Lifetime: shared
// between the front end and the router; the session lets go of its sink at the end.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/front_end/answer_group.h"
#include "router/front_end/inbox.h"
#include "router/front_end/load_shedder.h"
#include "router/front_end/model_assets.h"
#include "router/front_end/request_metrics.h"
#include "router/front_end/trace_store.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// Where a session's parts go: a front end's side of one request. Called in the router's turn, so it
// must not block; OnEnd also on the thread that called Start.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // Takes the next part; nothing but OnEnd(OK) follows one that is `last`. What is left in `part`
  // is of no meaning, but its room serves the next one. False: its client has left too much unread,
  // the request (and it alone) is ended.
  virtual bool OnPart(v1::GenerateResponse& part, bool last) = 0;
  // Exactly once, after every part; not OK when the answer is incomplete.
  virtual void OnEnd(const absl::Status& status) = 0;
  // What was handed over so far shall go out: now, and on this thread if that is possible at once,
  // when `inline_ok`. Not called for each part: several may go out together.
  virtual void Flush(bool inline_ok) = 0;
};

// When a request came, and what its client's tracing calls it (32 hex digits, or empty).
struct Arrival {
  absl::Time at;
  std::string trace_id;
  LoadShedder::FrontEndKind front_end;
};

class AnswerSession final : public std::enable_shared_from_this<AnswerSession> {
 public:
  // What sessions need of their router; all outlive them.
  struct Deps {
    const ModelAssets& assets;
    Inbox& inbox;
    Random& random;  // thread-safe
    RequestMetrics& metrics;
    TraceStore& traces;
    LoadShedder& shedder;
  };

  // Validates, tokenizes and submits `request` on the calling thread. An error means that the sink
  // was not and will not be called.
  static absl::StatusOr<std::shared_ptr<AnswerSession>> Start(const v1::GenerateRequest& request,
                                                              const Arrival& arrival,
                                                              const Deps& deps,
                                                              std::shared_ptr<AnswerSink> sink);

  AnswerSession(const Deps& deps, std::shared_ptr<AnswerSink> sink)
      : deps_(deps), sink_(std::move(sink)) {}

  // The client is gone: both legs end. Idempotent; nothing happens once the client has its end.
  void Cancel();

  // The client has the beginning of this answer already, from a call that broke off.
  bool resumes() const { return resumes_; }

  // ---- in the router's turn
  // Whether the client went before the request's turn came; that is its end then.
  bool EndIfCancelled();
  // The request was taken on: tells the client.
  void Accepted();
  // What should end because of this event: its sequence (kStop, a stop string), the whole request
  // (kAborted, a client that does not read), or nothing (kNone).
  request::FinishReason OnEvent(ClientEvent event);
  // Ends the stream with an error.
  void Fail(const absl::Status& status);
  // Has the sink send what it was handed since the last call. `inline_ok`: see AnswerSink.
  void Flush(bool inline_ok);

 private:
  absl::Status Prepare(const v1::GenerateRequest& request, const Arrival& arrival,
                       RequestInput& input);
  absl::Status PrepareAnswers(const v1::GenerateRequest& request, RequestInput& input);
  void Measure(const TokensReady& event);
  void SendAll(AnswerGroup::Parts parts, bool last);
  void Send(v1::GenerateResponse& part, bool last = false);
  void End(const absl::Status& status);

  const Deps deps_;
  std::shared_ptr<AnswerSink> sink_;   // in the router's turn once started; null after the end
  std::shared_ptr<AnswerSink> ended_;  // until it has sent its end
  RequestId id_;
  absl::Time submitted_;
  bool resumes_ = false;
  // When each sequence's last tokens came; in the turn. Bound: kSequencesMax (128).
  absl::InlinedVector<absl::Time, 1> last_tokens_;
  v1::GenerateResponse part_;  // room for the next delta; in the turn
  v1::Started started_;
  std::unique_ptr<AnswerGroup> answers_;
  bool overflowed_ = false;        // a part was not taken
  std::atomic<bool> over_{false};  // the client has its end; a cancel changes nothing
};

}  // namespace tandem::router
