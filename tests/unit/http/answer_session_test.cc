// Goal: a request counts once, however many answers it has and however it ends: complete, or
// because its client does not take a part, its last ones included; and not as failed where it was
// not taken on. A prompt's way through the cluster counts once, whichever answers the client gets.
// The logs tell what tokens a request had that failed, or of which the client gets the best answer.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

// Takes a number of parts and refuses the next ones.
class BoundedSink final : public AnswerSink {
 public:
  explicit BoundedSink(size_t room) : room_(room) {}
  bool OnPart(v1::GenerateResponse& part, bool) override {
    parts.push_back(part);
    return parts.size() <= room_;
  }
  void OnEnd(const absl::Status& status) override { ends.push_back(status); }
  void Flush(bool) override {}

  std::vector<v1::GenerateResponse> parts;
  std::vector<absl::Status> ends;

 private:
  const size_t room_;
};

class AnswerSessions : public ::testing::Test {
 protected:
  ~AnswerSessions() override { std::remove(audit_path_.c_str()); }

  // Starts a request with `n` answers, whose client takes `room` parts.
  void Start(int32_t n, size_t room, std::shared_ptr<AuditCall> audit = nullptr,
             int32_t best_of = 0) {
    Make(n, room, std::move(audit), best_of);
    session_->Accepted();
  }
  // The same, and the core has not taken the request yet.
  void Make(int32_t n, size_t room, std::shared_ptr<AuditCall> audit = nullptr,
            int32_t best_of = 0) {
    v1::GenerateRequest request;
    if (best_of > 0) request.set_best_of(best_of);
    request.set_text("prompt");
    request.set_n(n);
    request.mutable_stop()->set_max_tokens(100);
    request.mutable_stop()->add_stop("zz");
    sink_ = std::make_shared<BoundedSink>(room);
    AnswerSession::Deps deps = parts_.Session(inbox_, constraints_, long_work_);
    deps.access_log = true;
    const Arrival arrival = {.at = RealClock().Now(),
                             .front_end = LoadShedder::FrontEndKind::kHttp,
                             .audit = std::move(audit)};
    ASSERT_OK_AND_ASSIGN(session_, AnswerSession::Start(request, arrival, deps, sink_));
  }
  request::FinishReason Token(int32_t sequence, char text, float logprob = 0) {
    TokensReady ready;
    ready.sequence_index = sequence;
    ready.tokens.emplace_back().set_token_id(text);
    ready.tokens.back().set_logprob(logprob);
    return session_->OnEvent(std::move(ready));
  }
  void Done(int32_t sequence, bool last, request::FinishReason reason, double queue_ms = 0) {
    SequenceDone done;
    done.sequence_index = sequence;
    done.last = last;
    done.reason = reason;
    done.usage.set_prompt_tokens(sequence == 0 ? kPromptTokens : 0);
    done.timing.set_queue_ms(queue_ms);
    if (sequence == 0) {
      done.route.set_prefill_node("p0");
      done.route.set_kv_bytes_moved(4096);
    }
    session_->OnEvent(std::move(done));
  }
  std::string Metrics() const { return parts_.metrics.Text({}, {}); }
  static std::string Ended(const char* reason, int count) {
    return absl::StrCat("tandem_requests_finished_total{model_name=\"m\",finished_reason=\"",
                        reason, "\"} ", count, "\n");
  }

  static constexpr int32_t kPromptTokens = 6;

  FrontEndParts parts_;
  Inbox inbox_{64, [](std::vector<InboxItem>&) {}};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  std::shared_ptr<BoundedSink> sink_;
  std::shared_ptr<AnswerSession> session_;
  const std::string audit_path_ = absl::StrCat(::testing::TempDir(), "/session-audit-", ::getpid());
};

TEST_F(AnswerSessions, SeveralAnswersAreOneRequest) {
  Start(3, 100);
  for (const int32_t sequence : {0, 1, 2}) Token(sequence, 'x');
  const double queue_ms[] = {30, 10, 20};
  for (const int32_t sequence : {0, 1, 2})
    Done(sequence, sequence == 2, request::FinishReason::kLength, queue_ms[sequence]);
  ASSERT_EQ(sink_->ends.size(), 1u);
  EXPECT_OK(sink_->ends[0]);
  EXPECT_EQ(parts_.metrics.totals().requests, 1);
  EXPECT_EQ(parts_.metrics.totals().prompt_tokens, kPromptTokens);
  const std::string text = Metrics();
  EXPECT_THAT(text, HasSubstr(Ended("length", 1)));
  EXPECT_THAT(text, HasSubstr("\ntandem_request_seconds_count{model_name=\"m\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\ntandem_queue_seconds_sum{model_name=\"m\"} 0.01\n"));
  EXPECT_THAT(text, HasSubstr("\ntandem_output_tokens_count{model_name=\"m\"} 3\n"));
}

// The follower's answer is the best. The leader's sequence was placed at once, and its KV moved.
TEST_F(AnswerSessions, TheBestAnswersRequestIsMeasuredByAllOfItsSequences) {
  SetLogLevel(LogLevel::kInfo);  // other tests of this process may have changed it
  Start(1, 100, nullptr, /*best_of=*/2);
  Token(0, 'x', -5);
  for (const char text : {'y', 'z'}) Token(1, text, -1);
  Done(1, false, request::FinishReason::kLength, /*queue_ms=*/500);
  ::testing::internal::CaptureStderr();
  Done(0, true, request::FinishReason::kLength);
  const std::string logged = ::testing::internal::GetCapturedStderr();
  ASSERT_EQ(sink_->ends.size(), 1u);
  ASSERT_EQ(sink_->parts.size(), 3u);
  EXPECT_EQ(sink_->parts[1].delta().text(), "yz");
  const std::string text = Metrics();
  EXPECT_THAT(text, HasSubstr("\ntandem_queue_seconds_sum{model_name=\"m\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\ntandem_kv_wire_seconds_count{model_name=\"m\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\ntandem_output_tokens_count{model_name=\"m\"} 1\n"));
  for (const char* field : {" queue_ms=0 ", " prefill=p0 ", " output_tokens=3 ", " answers=1 "})
    EXPECT_THAT(logged, HasSubstr(field));
}

TEST_F(AnswerSessions, ARequestThatIsNotTakenOnIsRefusedAndNotFailed) {
  const auto refused = [](const char* reason, int count) {
    return absl::StrCat("tandem_requests_refused_total{model_name=\"m\",reason=\"", reason, "\"} ",
                        count, "\n");
  };
  Make(1, 100);
  session_->Fail(absl::ResourceExhaustedError("the queue is full"));
  Make(1, 100);
  session_->Fail(absl::UnavailableError("overloaded"), /*is_shed=*/true);
  // The client's own faults count as nothing.
  for (const absl::Status& status :
       {absl::InvalidArgumentError("guided"), absl::AlreadyExistsError("id")}) {
    Make(1, 100);
    session_->Fail(status);
    ASSERT_EQ(sink_->ends.size(), 1u);
  }
  std::string text = Metrics();
  EXPECT_THAT(text, HasSubstr(refused("exhausted", 1)));
  EXPECT_THAT(text, HasSubstr(refused("unavailable", 0)));
  EXPECT_THAT(text, HasSubstr(refused("overload", 0))) << "the shedder counts it";
  EXPECT_THAT(text, HasSubstr(Ended("error", 0)));
  EXPECT_THAT(text, HasSubstr("outcome=\"refused\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("outcome=\"failed\"} 0\n"));
  Start(1, 100);
  session_->Fail(absl::UnavailableError("no node"));
  text = Metrics();
  EXPECT_THAT(text, HasSubstr(Ended("error", 1)));
  EXPECT_THAT(text, HasSubstr(refused("unavailable", 0)));
  EXPECT_THAT(text, HasSubstr("outcome=\"failed\"} 1\n"));
}

TEST_F(AnswerSessions, AClientThatDoesNotReadHasOneFailedRequest) {
  SetLogLevel(LogLevel::kInfo);  // other tests of this process may have changed it
  ASSERT_OK_AND_ASSIGN(const auto log, AuditLog::Open(audit_path_, "router-7"));
  auto audit = AuditCall::Begin(
      log.get(), {.from = "192.0.2.7", .front_end = "http", .request_id = "r"}, false);
  audit->SetTenant(nullptr);
  Start(2, 3, audit);
  audit = nullptr;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Token(0, 'x'), request::FinishReason::kNone);
  EXPECT_EQ(Token(1, 'x'), request::FinishReason::kNone);
  EXPECT_EQ(Token(0, 'x'), request::FinishReason::kAborted);
  // The core ends what still runs.
  for (const int32_t sequence : {0, 1})
    Done(sequence, sequence == 1, request::FinishReason::kAborted);
  const std::string logged = ::testing::internal::GetCapturedStderr();
  ASSERT_EQ(sink_->ends.size(), 1u);
  EXPECT_THAT(sink_->ends[0], StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("slowly")));
  EXPECT_THAT(Metrics(), HasSubstr(Ended("error", 1)));
  EXPECT_THAT(Metrics(), HasSubstr(Ended("abort", 0)));
  EXPECT_THAT(Metrics(), HasSubstr("\ntandem_output_tokens_count{model_name=\"m\"} 0\n"));
  EXPECT_THAT(logged, HasSubstr(" output_tokens=3 "));
  ASSERT_TRUE(log->Flush(absl::Seconds(60)));
  nlohmann::json line;
  std::ifstream(audit_path_) >> line;
  EXPECT_EQ(line["result"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(line["prompt_tokens"], kPromptTokens);
  EXPECT_EQ(line["output_tokens"], 3);
}

// The text that may begin a stop string comes out at the end, before the part that tells the end.
TEST_F(AnswerSessions, AnAnswerIsNotCompleteWithoutItsLastParts) {
  for (const size_t room : {1, 2, 3}) {
    Start(1, room);
    Token(0, 'z');
    EXPECT_EQ(sink_->parts.size(), 1u) << "the token is held back";
    Done(0, true, request::FinishReason::kLength);
    ASSERT_EQ(sink_->ends.size(), 1u);
    if (room == 3) {
      EXPECT_OK(sink_->ends[0]);
      continue;
    }
    EXPECT_THAT(sink_->ends[0],
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("slowly")));
    EXPECT_EQ(sink_->parts.size(), room + 1) << "parts came after one that was refused";
  }
  EXPECT_THAT(Metrics(), HasSubstr(Ended("error", 2)));
  EXPECT_THAT(Metrics(), HasSubstr(Ended("length", 1)));
}

}  // namespace
}  // namespace tandem::router
