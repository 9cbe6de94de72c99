// Goal: a prompt that is cut keeps its last tokens and leaves room for an answer, in what the fleet
// holds; Ollama's num_predict never exceeds that room.
#include "router/front_end/http/truncate_prompts.h"

#include <gmock/gmock.h>

#include "common/base/status_macros.h"
#include "common/runtime/random.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "router/front_end/http/http_message.h"
#include "router/front_end/http/ollama_request.h"
#include "router/front_end/http/response_request.h"
#include "router/front_end/http/stream_resumption.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kFleetTokens = 1000;  // less than the model's context
constexpr FleetRoom kRoom = {kFleetTokens, kFleetTokens - 1};
constexpr int64_t kShare = kFleetTokens / 4;

const ModelAssets& Assets() {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  return *assets;
}

Json BodyOf(const std::string& members) {
  return ParseJsonBody(absl::StrCat("{", members, "}")).value();
}

ApiRequest Completion(const std::string& prompt, const std::string& members) {
  return ReadCompletion(BodyOf(absl::StrCat(R"("prompt":)", prompt, members)), false).value();
}

ApiRequest Response(const std::string& members) {
  const Json body = BodyOf(absl::StrCat(R"("input":")", std::string(3000, 'x'), "\"", members));
  return ReadResponse(body, Assets(), absl::UnixEpoch(), {}).value();
}

ApiRequest Ollama(int prompt_bytes, const std::string& members, bool raw) {
  const Json body = BodyOf(absl::StrCat(R"("prompt":")", std::string(prompt_bytes, 'x'),
                                        R"(","raw":)", raw ? "true" : "false", members));
  return ReadOllamaGenerate(body, Assets(), {absl::UnixEpoch(), false}).value();
}

// How many tokens of the prompt stay.
int64_t Kept(ApiRequest& api, FleetRoom room = kRoom) {
  EXPECT_OK(TruncatePrompts(Assets(), room, api));
  return api.requests[0].tokens().ids_size();
}

TEST(TruncatePrompts, KeepsTheLastTokens) {
  const auto kept = [](const std::string& prompt, const std::string& members) {
    ApiRequest api = Completion(prompt, members);
    EXPECT_OK(TruncatePrompts(Assets(), kRoom, api));
    const auto& ids = api.requests[0].tokens().ids();
    return Assets().tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()), false);
  };
  EXPECT_EQ(kept(R"("abcdef")", R"(,"truncate_prompt_tokens":3)"), "def");
  EXPECT_EQ(kept("[97,98,99]", R"(,"truncate_prompt_tokens":2)"), "bc");
  EXPECT_EQ(kept(R"("ab")", R"(,"truncate_prompt_tokens":3)"), "ab");
  // A conversation longer than any prompt, which is no matter here.
  const std::string all(Assets().prompt_bytes_max + 1, 'x');
  const Json chat = BodyOf(absl::StrCat(R"("truncate_prompt_tokens":4,"messages":[)",
                                        R"({"role":"user","content":")", all, R"("}])"));
  ASSERT_OK_AND_ASSIGN(ApiRequest api, ReadChat(chat, Assets(), absl::UnixEpoch(), false));
  EXPECT_EQ(Kept(api), 4);
  api = Completion(R"("a")", absl::StrCat(R"(,"truncate_prompt_tokens":)",
                                          Assets().identity.context_tokens + 1));
  EXPECT_THAT(TruncatePrompts(Assets(), kRoom, api),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("truncate_prompt_tokens")));
}

// As vLLM's -1: what the limit leaves, or all but one token.
TEST(TruncatePrompts, AsManyAsFitAreThoseThatTheFleetHolds) {
  const std::string prompt = absl::StrCat("\"", std::string(3000, 'x'), "\"");
  ApiRequest api = Completion(prompt, R"(,"truncate_prompt_tokens":-1,"max_tokens":7)");
  EXPECT_EQ(Kept(api), kFleetTokens - 7);
  api = Response(R"(,"truncate_prompt_tokens":-1)");
  EXPECT_EQ(Kept(api), kFleetTokens - 1);
}

TEST(TruncatePrompts, AutoLeavesAShareForTheAnswer) {
  ApiRequest api = Response(R"(,"truncation":"auto")");
  EXPECT_EQ(Kept(api), kFleetTokens - kShare);
  api = Response(R"(,"truncation":"auto","truncate_prompt_tokens":null)");
  EXPECT_EQ(Kept(api), kFleetTokens - kShare);
  api = Response(R"(,"truncation":"auto","max_output_tokens":7)");
  EXPECT_EQ(Kept(api), kFleetTokens - 7);
  api = Response(R"(,"truncation":"auto","truncate_prompt_tokens":5)");
  EXPECT_EQ(Kept(api), 5);
  // No more than so many in a large context.
  const Json body =
      BodyOf(absl::StrCat(R"("truncation":"auto","input":")", std::string(9000, 'x'), "\""));
  ASSERT_OK_AND_ASSIGN(api, ReadResponse(body, Assets(), absl::UnixEpoch(), {}));
  EXPECT_EQ(Kept(api, {8000, 7999}), 8000 - kAnswerShareMax);
}

// Where nodes lend, some of a sequence's memory is for answers alone.
TEST(TruncatePrompts, PromptsFitIntoWhatTheFleetTakesOfThem) {
  const FleetRoom lending = {kFleetTokens, 600};
  for (const char* members : {R"(,"truncation":"auto")", R"(,"truncate_prompt_tokens":-1)"}) {
    ApiRequest api = Response(members);
    EXPECT_EQ(Kept(api, lending), 600) << members;
  }
}

TEST(TruncatePrompts, OllamasTruncateLeavesAShareForTheAnswer) {
  for (const bool raw : {true, false}) {
    ApiRequest api = Ollama(3000, R"(,"truncate":true)", raw);
    EXPECT_EQ(Kept(api), kFleetTokens - kShare);
    api = Ollama(3000, R"(,"truncate":true,"options":{"num_predict":7})", raw);
    EXPECT_EQ(Kept(api), kFleetTokens - 7);
    EXPECT_EQ(api.requests[0].stop().max_tokens(), 7);
    // A limit that no prompt leaves room for is none.
    api = Ollama(3000, R"(,"truncate":true,"options":{"num_predict":100000})", raw);
    EXPECT_EQ(Kept(api), kFleetTokens - kShare);
    EXPECT_FALSE(api.requests[0].stop().has_max_tokens());
  }
}

TEST(TruncatePrompts, OllamasLimitIsCappedToTheRoom) {
  for (const bool raw : {true, false}) {
    ApiRequest api = Ollama(0, "", raw);
    ASSERT_OK(TruncatePrompts(Assets(), kRoom, api));
    const int64_t around = raw ? 0 : api.requests[0].tokens().ids_size();  // what the template adds
    const int64_t room = kFleetTokens - around - 100;
    const auto limit = [&](int64_t asked) -> int64_t {
      api = Ollama(100, absl::StrCat(R"(,"options":{"num_predict":)", asked, "}"), raw);
      EXPECT_OK(TruncatePrompts(Assets(), kRoom, api));
      return api.requests[0].stop().has_max_tokens() ? api.requests[0].stop().max_tokens() : -1;
    };
    EXPECT_EQ(limit(7), 7);
    EXPECT_EQ(limit(room), room);
    // Without a limit the answer takes the room.
    for (const int64_t asked : {room + 1, kFleetTokens, int64_t{2'000'000'000}}) {
      EXPECT_EQ(limit(asked), -1) << asked;
    }
  }
  // Other APIs refuse it later on.
  ApiRequest api = Completion(R"("a")", R"(,"max_tokens":100000)");
  ASSERT_OK(TruncatePrompts(Assets(), kRoom, api));
  EXPECT_EQ(api.requests[0].stop().max_tokens(), 100000);
}

// `api` as a stream that can be continued, in a fleet of `tokens`; continued from `last` unless
// that is empty.
absl::StatusOr<ApiRequest> StreamIn(int64_t tokens, ApiRequest api, const std::string& last) {
  api.stream = true;
  HttpRequest head;
  head.headers = {{"x-tandem-resumable", "1"}};
  if (!last.empty()) head.headers.emplace_back("last-event-id", last);
  const FleetRoom now = {tokens, tokens - 1};
  RETURN_IF_ERROR(TruncatePrompts(Assets(), RoomOfLastEvent(head).value_or(now), api));
  const auto random = NewSeededRandom(7);
  std::string id = "answer";
  RETURN_IF_ERROR(MakeResumable(head, "fingerprint", *random, id, api));
  return api;
}

// A node that joins or leaves changes the room of new streams only.
TEST(TruncatePrompts, AStreamGoesOnInTheRoomThatItBeganIn) {
  const std::string limit = R"(,"options":{"num_predict":3500})";
  for (const ApiRequest& api :
       {Response(R"(,"truncate_prompt_tokens":-1)"), Response(R"(,"truncation":"auto")"),
        Ollama(3000, R"(,"truncate":true)", true), Ollama(9, limit, true),
        Ollama(9, limit, false)}) {
    ASSERT_OK_AND_ASSIGN(const ApiRequest first, StreamIn(kFleetTokens, api, ""));
    const std::string last = first.event_id_begin + "3.1";
    for (const int64_t tokens : {kFleetTokens - 100, kFleetTokens, int64_t{8000}}) {
      const absl::StatusOr<ApiRequest> again = StreamIn(tokens, api, last);
      ASSERT_OK(again);
      EXPECT_EQ(again->event_id_begin, first.event_id_begin);
    }
    ASSERT_OK_AND_ASSIGN(const ApiRequest larger, StreamIn(8000, api, ""));
    EXPECT_NE(larger.requests[0].SerializeAsString(), first.requests[0].SerializeAsString())
        << "the room decides";
  }
}

}  // namespace
}  // namespace tandem::router
