// Goal: a drain waits for every answer that was begun, over both front ends, also while its
// constraint is compiled and while its client does not read; it begins none. Clients' connections
// close when the drain begins, so that their next requests go to another router, and probes still
// connect.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GetOf;
using ::tandem::testing::HttpAnswer;
using ::tandem::testing::HttpSocket;
using ::tandem::testing::PostOf;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kAtOnce = absl::ZeroDuration();
constexpr absl::Duration kLong = absl::Seconds(30);
constexpr char kConstrained[] = R"({"prompt": "p", "guided_regex": "[a-z]{3}"})";

TEST(RunningAnswers, AreAwaitedUntilTheLastCopyOfTheLastGuardIsGone) {
  RunningAnswers running;
  ASSERT_OK_AND_ASSIGN(RunningAnswers::Guard one, running.Enter());
  ASSERT_OK_AND_ASSIGN(RunningAnswers::Guard two, running.Enter());
  EXPECT_FALSE(running.draining());
  running.BeginDrain();
  EXPECT_TRUE(running.draining());
  EXPECT_THAT(running.Enter(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  RunningAnswers::Guard copy = one;
  one = nullptr;
  two = nullptr;
  EXPECT_FALSE(running.AwaitNone(kAtOnce));
  std::thread leaves([&] { copy = nullptr; });
  EXPECT_TRUE(running.AwaitNone(kLong));
  leaves.join();
}

// Front ends whose core answers each request with one token, and which compile no constraint before
// Release.
class Drain : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(front_ends_.Start(Session(), status_, service_,
                                [this] { return !parts_.running.draining(); }));
  }
  void TearDown() override {
    Release();
    front_ends_.Stop();
  }
  void Release() {
    if (!released_.HasBeenNotified()) released_.Notify();
  }
  AnswerSession::Deps Session() { return parts_.Session(inbox_, constraints_, long_work_); }
  static v1::GenerateRequest Constrained() {
    v1::GenerateRequest request;
    request.set_text("p");
    request.mutable_guided()->set_regex("[a-z]{3}");
    return request;
  }
  // How a call ends. OK: with all parts.
  grpc::Status Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = front_ends_.stub->Generate(&context, request);
    v1::GenerateResponse part;
    bool finished = false;
    while (reader->Read(&part)) finished = part.has_finished();
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.ok(), finished) << status.error_message();
    return status;
  }
  // As the core does.
  static void Answer(AnswerSession& session) {
    session.Accepted();
    TokensReady ready;
    ready.tokens.emplace_back().set_token_id('x');
    session.OnEvent(std::move(ready));
    SequenceDone done;
    done.reason = request::FinishReason::kStop;
    session.OnEvent(std::move(done));
    session.Flush(/*inline_ok=*/false);
  }

  FrontEndParts parts_;
  Inbox inbox_{64, [](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   if (auto* submit = std::get_if<SubmitRequest>(&item)) Answer(*submit->session);
                 }
               }};
  absl::Notification compiling_, released_;
  guided::CompileQueue constraints_{[this](const request::GuidedParams& params) {
    if (!compiling_.HasBeenNotified()) compiling_.Notify();
    released_.WaitForNotification();
    EXPECT_OK(parts_.assets->constraints->Check(params));
  }};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  ClientService service_{Session(), status_, [] { return ServedFleet(); }};
  FrontEnds front_ends_;
};

TEST_F(Drain, WaitsForAConstraintOfHttp) {
  HttpSocket client(front_ends_.http->address());
  ASSERT_TRUE(client.Send(PostOf("/v1/completions", kConstrained)));
  compiling_.WaitForNotification();
  front_ends_.http->BeginDrain();
  EXPECT_FALSE(parts_.running.AwaitNone(kAtOnce));
  Release();
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(parts_.running.AwaitNone(kLong));
}

TEST_F(Drain, WaitsForAConstraintOfGrpc) {
  std::thread client([&] {
    const grpc::Status status = Generate(Constrained());
    EXPECT_TRUE(status.ok()) << status.error_message();
  });
  compiling_.WaitForNotification();
  front_ends_.http->BeginDrain();
  EXPECT_FALSE(parts_.running.AwaitNone(kAtOnce));
  Release();
  client.join();
  EXPECT_TRUE(parts_.running.AwaitNone(kLong));
}

TEST_F(Drain, DoesNotWaitForAClientThatIsGone) {
  {
    grpc::ClientContext context;
    const auto reader = front_ends_.stub->Generate(&context, Constrained());
    compiling_.WaitForNotification();
    context.TryCancel();
    v1::GenerateResponse part;
    EXPECT_FALSE(reader->Read(&part));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  front_ends_.http->BeginDrain();
  Release();
  EXPECT_TRUE(parts_.running.AwaitNone(kLong));
}

TEST_F(Drain, RefusesWhatComesAfter) {
  front_ends_.http->BeginDrain();
  const HttpAnswer refused =
      Ask(front_ends_.http->address(), PostOf("/v1/completions", R"({"prompt": "p"})"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("this router is draining"));
  v1::GenerateRequest request;
  request.set_text("p");
  const grpc::Status status = Generate(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("this router is draining"));
  EXPECT_TRUE(parts_.running.AwaitNone(kLong)) << "what was refused is not awaited";
}

TEST_F(Drain, EndsClientsConnections) {
  const std::string post = PostOf("/v1/completions", R"({"prompt": "p"})");
  HttpSocket idle(front_ends_.http->address()), begun(front_ends_.http->address()),
      busy(front_ends_.http->address());
  for (HttpSocket* socket : {&idle, &begun, &busy}) {
    ASSERT_TRUE(socket->Send(post));
    const HttpAnswer answer = socket->Read();
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.Header("connection"), "");
  }
  ASSERT_TRUE(busy.Send(PostOf("/v1/completions", kConstrained)));
  ASSERT_TRUE(begun.Send(post.substr(0, post.size() / 2)));
  compiling_.WaitForNotification();
  front_ends_.http->BeginDrain();
  EXPECT_FALSE(idle.ReadSome()) << "an idle connection stays open: " << idle.buffer();
  Release();
  ASSERT_TRUE(begun.Send(post.substr(post.size() / 2)));
  for (const auto& [socket, status] : {std::pair(&busy, 200), std::pair(&begun, 503)}) {
    const HttpAnswer answer = socket->Read();
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(answer.Header("connection"), "close");
    EXPECT_FALSE(socket->ReadSome()) << "the connection stays open";
  }
  HttpSocket probe(front_ends_.http->address());
  ASSERT_TRUE(probe.Send(GetOf("/live")));
  const HttpAnswer live = probe.Read();
  EXPECT_EQ(live.status, 200);
  EXPECT_EQ(live.Header("connection"), "close");
  EXPECT_FALSE(probe.ReadSome()) << "the connection stays open";
}

}  // namespace
}  // namespace tandem::router
