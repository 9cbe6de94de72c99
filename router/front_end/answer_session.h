// One client request, from either front end. The session checks the request, tokenizes it, submits
// it to the core, and turns the core's events into the parts that the client sees. A front end only
// carries those parts, so the same request gets the same stream over every protocol.
//
//   Make ─▶ Begin ─▶ (Submit) ─▶ Accepted ─▶ OnEvent… ─▶ the sink's OnEnd
//
// A request may have several answers (sequences), each with its own text, end and stop strings. The
// stream ends with the last of them.
//
// Thread safety: Cancel from any thread; all else until Begin from one thread at a time, and then
// on the core's strand. continues_text() and resumes() do not change after Make: any thread may
// call them. A session whose constraint does not compile ends on the thread that compiles it; the
// strand never meets it. Owner: shared by the front end and the core's shell; the session releases
// its sink at the end.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/guided/compile_queue.h"
#include "common/runtime/random.h"
#include "router/core/service_tiers.h"
#include "router/front_end/access_record.h"
#include "router/front_end/answer_group.h"
#include "router/front_end/audit_call.h"
#include "router/front_end/audit_log.h"
#include "router/front_end/inbox.h"
#include "router/front_end/load_shedder.h"
#include "router/front_end/long_work.h"
#include "router/front_end/model_assets.h"
#include "router/front_end/request_metrics.h"
#include "router/front_end/running_answers.h"
#include "router/front_end/service_measure.h"
#include "router/front_end/tenant.h"
#include "router/front_end/trace_store.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// A front end's side of one request: takes the parts that the client gets. The session calls it on
// the core's strand, so it must not block. A request whose constraint is compiled first may fail
// before it reaches the strand: then the compiling thread calls OnEnd and Flush, and no part came
// before.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // Takes the next part. After a `last` part that is taken, only OnEnd(OK) follows. The sink may
  // leave anything in `part`; its memory is reused for the next part. False: the client has left
  // too much unread, and the session ends this request.
  virtual bool OnPart(v1::GenerateResponse& part, bool last) = 0;
  // Called exactly once, after every part. Not OK when the answer is incomplete.
  virtual void OnEnd(const absl::Status& status) = 0;
  // Flushes buffered parts; inline if `inline_ok` and possible without blocking. Called once for
  // several parts, so that they go out together.
  virtual void Flush(bool inline_ok) = 0;
};

// When and where a request arrived, its trace id from the client (32 hex digits, or empty), and the
// call that it is a part of: its tenant's (null in a router without keys), and the audit log's.
struct Arrival {
  absl::Time at;
  std::string trace_id;
  LoadShedder::FrontEndKind front_end;
  std::shared_ptr<const TenantCall> call = nullptr;
  std::shared_ptr<AuditCall> audit = nullptr;  // null: the router has no audit log
  bool resumes = false;                        // the client has the beginning of the answer already
  bool keeps_answers = false;                  // see RequestInput
  int64_t front_end_bytes = 0;                 // see RequestInput
  RunningAnswers::Guard guard = nullptr;       // null: no drain waits for the answer
  bool chat_turn = false;  // the prompt is a chat, and the answer a message of its own
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
    guided::CompileQueue& constraints;
    LongWork& long_work;
    const ServiceTiers& tiers;
    RunningAnswers& running;
    bool access_log = false;    // one line for each request
    AuditLog* audit = nullptr;  // null: there is none
  };

  // Validates and tokenizes `request` on the calling thread. After an error, here and below, the
  // sink was not called and will not be.
  static absl::StatusOr<std::shared_ptr<AnswerSession>> Make(const v1::GenerateRequest& request,
                                                             const Arrival& arrival,
                                                             const Deps& deps,
                                                             std::shared_ptr<AnswerSink> sink);
  // Submits the request; one that cannot be submitted counts as refused. One whose constraint was
  // not compiled yet is submitted once `constraints` has compiled it; a constraint that does not
  // compile then ends the stream. Called once.
  absl::Status Begin();
  // Make and Begin.
  static absl::StatusOr<std::shared_ptr<AnswerSession>> Start(const v1::GenerateRequest& request,
                                                              const Arrival& arrival,
                                                              const Deps& deps,
                                                              std::shared_ptr<AnswerSink> sink);
  // How many sequences it runs at a time. REQUIRES: before Begin.
  int32_t sequences_at_once() const { return input_->sequences_at_once(); }
  // How many bytes the router may come to hold for it. REQUIRES: before Begin.
  int64_t held_bytes_max() const { return input_->HeldBytesMax(); }
  // Whether the answer's text goes on with the prompt's (StreamingDetokenizer::Options).
  bool continues_text() const { return continues_text_; }

  AnswerSession(const Deps& deps, std::shared_ptr<AnswerSink> sink)
      : deps_(deps), sink_(std::move(sink)) {}

  // The client is gone: ends the request. Idempotent; does nothing once the client has its end.
  void Cancel();

  // The client has the beginning of this answer already, from a call that was cut off.
  bool resumes() const { return resumes_; }

  // ---- on the core's strand
  // Ends the stream and returns true if the client left before the core took the request.
  bool EndIfCancelled();
  // The core accepted the request: tells the client.
  void Accepted();
  // Passes an event on to the client. Returns what must end because of it: its sequence (kStop: a
  // stop string appeared), the whole request (kAborted: the client does not read), or nothing
  // (kNone).
  request::FinishReason OnEvent(ClientEvent event);
  // Ends the stream with an error. `is_shed`: the load shedder's, which has counted the refusal.
  void Fail(const absl::Status& status, bool is_shed = false);
  // Flushes the sink. `inline_ok`: see AnswerSink.
  void Flush(bool inline_ok);

 private:
  absl::Status Prepare(const v1::GenerateRequest& request, const Arrival& arrival,
                       RequestInput& input);
  // The constraint's verdict, in the words that the client gets; nullopt if it is not known yet.
  std::optional<absl::Status> ConstraintVerdict(const request::GuidedParams& params) const;
  // Compiles the constraint of `input` on another thread, then submits.
  absl::Status SubmitLater(RequestInput input, LoadShedder::FrontEndKind front_end);
  absl::Status Submit(RequestInput input, LoadShedder::FrontEndKind front_end);
  // Makes the request its tenant's: its name in the cluster, its salt. kPermissionDenied for a
  // priority that the tenant may not ask for.
  absl::Status Assign(RequestInput& input) const;
  // Gives it its service tier, `asked` or its client's. Errors as ServiceTiers::Choose.
  absl::Status AssignTier(const std::string& asked, RequestInput& input);
  absl::Status PrepareAnswers(const v1::GenerateRequest& request, const Arrival& arrival,
                              RequestInput& input);
  void Measure(const TokensReady& event);
  // Charges the tenant so that `computed_tokens` have been charged in all.
  void ChargeUpTo(int64_t computed_tokens);
  // The core's last event of this request: charges the rest, and gives the tenant's place back.
  void EndCall(int64_t computed_tokens);
  void SendAll(AnswerGroup::Parts parts, bool last);
  // Counts an answer that has ended and that the client gets.
  void Count(const v1::Finished& finished);
  // Counts a sequence that has ended.
  void CountSequence(const SequenceDone& done);
  // Counts the tokens of answers that did not end.
  void CountUnfinished();
  // Counts, in logs only, tokens of answers that the client does not get.
  void CountInLogs(const v1::Usage& usage);
  // Counts the failed request and keeps its trace. `is_shed`: see Fail.
  void CountFailure(const absl::Status& status, bool is_shed);
  // All answers have ended and were sent.
  void Complete();
  void Send(v1::GenerateResponse& part, bool last = false);
  void End(const absl::Status& status);
  // Counts the request's end in its tier, and tells it to the logs.
  void RecordEnd(const absl::Status& status);

  const Deps deps_;
  std::shared_ptr<AnswerSink> sink_;   // on the core's strand once started; null after the end
  std::shared_ptr<AnswerSink> ended_;  // until it has sent its end
  // As long as the session: the front end keeps that until the client has its end.
  RunningAnswers::Guard guard_;
  // On the core's strand once started; null without a tenant, and once the core has ended the
  // request.
  std::shared_ptr<const TenantCall> call_;
  std::optional<RequestInput> input_;  // from Make until Begin
  LoadShedder::FrontEndKind front_end_ = LoadShedder::FrontEndKind::kHttp;
  bool accepted_ = false;  // by the core; on its strand
  int64_t charged_ = 0;    // to the tenant; on the core's strand
  RequestId id_;           // in the cluster; clients know it by started_.request_id()
  absl::Time submitted_;
  bool resumes_ = false;
  bool continues_text_ = false;
  // When each sequence's last tokens came; on the core's strand. Bound: kSequencesMax (128).
  absl::InlinedVector<absl::Time, 1> last_tokens_;
  std::optional<ServiceMeasure> service_;
  bool aborted_ = false;  // by the client, as the core says
  // On the core's strand, as the next ones: the tokens that came for all answers, those of the
  // answers that have ended, why the last one ended, and when its first sequence was placed.
  int64_t output_tokens_ = 0;
  v1::Usage finished_usage_;
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;
  absl::Duration queued_ = absl::InfiniteDuration();
  v1::GenerateResponse part_;  // the next delta, reused; on the core's strand
  v1::Started started_;
  std::unique_ptr<AnswerGroup> answers_;
  std::shared_ptr<AuditCall> audit_;      // until the client has its end; null without an audit log
  std::unique_ptr<AccessRecord> access_;  // on the core's strand; null = the router logs no access
  bool overflowed_ = false;               // a part was not taken
  std::atomic<bool> over_{false};         // the client has its end: Cancel does nothing
};

}  // namespace tandem::router
