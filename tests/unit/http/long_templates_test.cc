// Goal: no thread that serves many clients renders a conversation for long. A template that takes
// many steps for a short conversation is run on the threads for long work, over HTTP and gRPC, and
// so is every long message; any other template may take only so many steps.
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
using ::tandem::testing::PostOf;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

// Each message looks at all messages.
constexpr char kQuadratic[] =
    "{% for m in messages %}{% for n in messages %}{% if n.role == 'tool' %}t{% endif %}"
    "{% endfor %}{{ m.content }}{% endfor %}";
constexpr char kLinear[] =
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% for i in range(rounds | default(0)) %}{% endfor %}";
constexpr char kChat[] = R"({"messages":[{"role":"user","content":"hello"}]})";

std::unique_ptr<ModelAssets> AssetsWith(const char* source) {
  std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  assets->chat_template = model::ChatTemplate::Parse(source).value();
  assets->TryChatTemplate();
  return assets;
}

TEST(ModelAssets, TellTemplatesThatTakeManySteps) {
  EXPECT_TRUE(ModelAssets::ForHashEngine().value()->renders_shortly);
  EXPECT_TRUE(AssetsWith(kLinear)->renders_shortly);
  EXPECT_FALSE(AssetsWith(kQuadratic)->renders_shortly);
}

TEST(ModelAssets, BoundTheStepsOfShortConversationsAndNotOfLongOnes) {
  const std::unique_ptr<ModelAssets> assets = AssetsWith(kLinear);
  const auto render = [&](int64_t rounds, size_t bytes) {
    model::ChatTemplate::RenderInput input;
    input.messages = {{{"role", "user"}, {"content", std::string(bytes, 'x')}}};
    input.extra = {{"rounds", rounds}};
    return assets->RenderChat(std::move(input), absl::UnixEpoch()).status();
  };
  EXPECT_OK(render(1'000, 10));
  EXPECT_THAT(render(1'000'000, 10), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("takes more than 500000 steps")));
  EXPECT_OK(render(1'000'000, 200'000));
}

// What a gRPC client sends: text that no front end has read before.
absl::Status RenderedWithTools(const ModelAssets& assets, std::string tools_json) {
  v1::ChatMessages chat;
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role("user");
  message.set_content("hello");
  chat.set_tools_json(std::move(tools_json));
  return assets.RenderChat(chat, absl::UnixEpoch()).status();
}

TEST(ModelAssets, RefuseToolsThatAreNotAListOfBoundedDepth) {
  constexpr size_t kDeep = 500'000;  // more levels than the stack holds
  const std::string fits = absl::StrCat(std::string(60, '['), std::string(60, ']'));
  const std::string deep = absl::StrCat(std::string(kDeep, '['), std::string(kDeep, ']'));
  const std::unique_ptr<ModelAssets> assets = AssetsWith(kLinear);
  EXPECT_OK(RenderedWithTools(*assets, "[]"));
  EXPECT_OK(RenderedWithTools(*assets, fits));
  for (const std::string& tools :
       {deep, std::string(kDeep, '['), std::string("{}"), std::string("[] []"), std::string("[]}"),
        std::string(R"([],"more":[])"), std::string(R"(1,"tools":[])"),
        std::string(R"([{"a":1,"a":2}])")}) {
    EXPECT_THAT(RenderedWithTools(*assets, tools),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("chat.tools_json: expected a JSON array")))
        << tools.substr(0, 40);
  }
}

// Were each name compared with all before it, this would take minutes.
TEST(ModelAssets, ReadToolsOfManyMembersInOnePass) {
  std::string members;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&members, i == 0 ? "" : ",", "\"m", i, "\":0");
  const std::unique_ptr<ModelAssets> assets = AssetsWith(kLinear);
  EXPECT_OK(RenderedWithTools(*assets, absl::StrCat("[{", members, "}]")));
  EXPECT_THAT(RenderedWithTools(*assets, absl::StrCat("[{", members, ",\"m7\":1}]")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chat.tools_json")));
}

// A front end whose threads for long work are busy until Release.
class LongTemplates : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK(long_work_.Add(1, [this] {
      busy_.Notify();
      released_.WaitForNotification();
    }));
    busy_.WaitForNotification();
    ASSERT_OK(front_ends_.Start(Session(), status_, service_));
  }
  void TearDown() override {
    if (!released_.HasBeenNotified()) released_.Notify();
    front_ends_.Stop();
    // A session that nobody frees would keep a router's drain waiting.
    EXPECT_TRUE(parts_.running.AwaitNone(absl::Seconds(30)));
  }
  AnswerSession::Deps Session() { return parts_.Session(inbox_, constraints_, long_work_); }
  // What becomes of a call: ABORTED once it has reached the core.
  grpc::StatusCode Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = front_ends_.stub->Generate(&context, request);
    v1::GenerateResponse part;
    while (reader->Read(&part)) {
    }
    return reader->Finish().error_code();
  }
  static v1::GenerateRequest Chat() {
    v1::GenerateRequest request;
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content("hello");
    return request;
  }
  // Runs `call` on a thread, and expects it not to end before the threads for long work are free.
  template <typename Call>
  void ExpectWaits(const Call& call) {
    const size_t before = long_work_.size();
    std::thread caller([&] {
      call();
      EXPECT_TRUE(released_.HasBeenNotified()) << "was processed on a thread of many clients";
      ended_ = true;
    });
    while (long_work_.size() == before && !ended_) std::this_thread::yield();
    released_.Notify();
    caller.join();
  }

  // As the core would, with answer_tokens_ of them.
  void Answer(AnswerSession& session) {
    session.Accepted();
    TokensReady ready;
    for (size_t i = 0; i < answer_tokens_; ++i) ready.tokens.emplace_back().set_token_id('x');
    session.OnEvent(std::move(ready));
    SequenceDone done;
    done.reason = request::FinishReason::kStop;
    session.OnEvent(std::move(done));
    session.Flush(/*inline_ok=*/false);
  }

  // Of an answer; 0: requests fail once they have reached the core.
  std::atomic<size_t> answer_tokens_{0};
  FrontEndParts parts_{AssetsWith(GetParam())};
  Inbox inbox_{64, [this](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   auto* submit = std::get_if<SubmitRequest>(&item);
                   if (submit == nullptr) continue;
                   if (answer_tokens_ == 0) {
                     submit->session->Fail(absl::AbortedError("reached the core"));
                   } else {
                     Answer(*submit->session);
                   }
                 }
               }};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  absl::Notification busy_, released_;
  std::atomic<bool> ended_{false};
  LongWork long_work_{/*threads=*/1};
  StatusBoard status_{inbox_};
  ClientService service_{Session(), status_, [] { return ServedFleet(); }};
  FrontEnds front_ends_;
};

using ShortTemplates = LongTemplates;
INSTANTIATE_TEST_SUITE_P(Linear, ShortTemplates, ::testing::Values(kLinear));
INSTANTIATE_TEST_SUITE_P(Quadratic, LongTemplates, ::testing::Values(kQuadratic));

TEST_P(ShortTemplates, AreRenderedWhereTheRequestIsRead) {
  EXPECT_EQ(Ask(front_ends_.http->address(), PostOf("/tokenize", kChat)).status, 200);
  EXPECT_EQ(Generate(Chat()), grpc::StatusCode::ABORTED);
}

TEST_P(ShortTemplates, LongMessagesOverGrpcAreReadOnThreadsOfTheirOwn) {
  v1::GenerateRequest request;
  request.set_text(std::string(LongWork::kShortBytesMax, 'x'));
  ExpectWaits([&] { EXPECT_EQ(Generate(request), grpc::StatusCode::INVALID_ARGUMENT); });
}

TEST_P(ShortTemplates, ManyTokensOverGrpcBecomeTextOnThreadsOfTheirOwn) {
  v1::DetokenizeRequest request;
  for (size_t i = 0; i <= LongWork::kShortBytesMax; ++i) request.add_ids('x');
  ExpectWaits([&] {
    grpc::ClientContext context;
    v1::DetokenizeResponse response;
    EXPECT_TRUE(front_ends_.stub->Detokenize(&context, request, &response).ok());
    EXPECT_EQ(response.text().size(), LongWork::kShortBytesMax + 1);
  });
}

// Its body is read as any other, though it asks for no tokens.
TEST_P(ShortTemplates, ALongBodyThatAsksWhatIsServedIsReadOnThreadsOfTheirOwn) {
  const std::string blanks(LongWork::kShortBytesMax, ' ');
  ExpectWaits([&] {
    const auto shown = Ask(front_ends_.http->address(),
                           PostOf("/api/show", absl::StrCat(R"({"model":"hash")", blanks, "}")));
    EXPECT_EQ(shown.status, 200) << shown.body;
  });
}

// What is read then is the conversation, not the request.
TEST_P(ShortTemplates, ShortRequestsThatContinueLongResponsesAreReadOnThreadsOfTheirOwn) {
  const auto continues = [&](size_t tokens) {
    answer_tokens_ = tokens;
    const auto kept =
        Ask(front_ends_.http->address(), PostOf("/v1/responses", R"({"input":"hello"})"));
    EXPECT_EQ(kept.status, 200) << kept.body;
    const std::string id = kept.Json()["id"];
    return absl::StrCat(R"({"input":"more","previous_response_id":")", id, "\"}");
  };
  const std::string of_short = continues(100);
  EXPECT_EQ(Ask(front_ends_.http->address(), PostOf("/v1/responses/input_tokens", of_short)).status,
            200);
  const std::string of_long = continues(LongWork::kShortBytesMax);
  ExpectWaits([&] {
    const auto counted =
        Ask(front_ends_.http->address(), PostOf("/v1/responses/input_tokens", of_long));
    EXPECT_EQ(counted.status, 200) << counted.body;
  });
  // The context is shorter.
  EXPECT_EQ(Ask(front_ends_.http->address(), PostOf("/v1/responses", of_long)).status, 400);
}

TEST_P(LongTemplates, WaitForTheThreadsForLongWorkOverHttp) {
  ExpectWaits([&] {
    const auto tokens = Ask(front_ends_.http->address(), PostOf("/tokenize", kChat));
    EXPECT_EQ(tokens.status, 200) << tokens.body;
  });
}

TEST_P(LongTemplates, WaitForTheThreadsForLongWorkOverGrpc) {
  ExpectWaits([&] { EXPECT_EQ(Generate(Chat()), grpc::StatusCode::ABORTED); });
}

TEST_P(LongTemplates, OthersDoNotWait) {
  EXPECT_EQ(Ask(front_ends_.http->address(), GetOf("/live")).status, 200);
  EXPECT_EQ(Ask(front_ends_.http->address(), PostOf("/detokenize", R"({"tokens":[104]})")).status,
            200);
  EXPECT_EQ(Ask(front_ends_.http->address(), PostOf("/api/show", R"({"model":"hash"})")).status,
            200);
}

}  // namespace
}  // namespace tandem::router
