// Goal: a stream that breaks off after any of its events, and whose parts come otherwise when it is
// generated again, gives the client each text, call and other event once; a place that is none, or
// in another request's stream, is refused by name.
#include "router/front_end/http/stream_resumption.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/runtime/random.h"
#include "router/front_end/http/anthropic_format.h"
#include "router/front_end/http/anthropic_request.h"
#include "router/front_end/http/chat_format.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_format.h"
#include "router/front_end/http/completion_request.h"
#include "router/front_end/http/http_message.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::StartsWith;

const ModelAssets& StreamAssets() {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  return *assets;
}

constexpr char kStreamTools[] =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],)";
constexpr char kMessageStreamTools[] = R"("tools":[{"name":"f","input_schema":{}}],)";

ApiRequest StreamOf(ApiKind kind, const std::string& members = "") {
  const bool chat = kind == ApiKind::kChat;
  const std::string body = kind == ApiKind::kCompletion
                               ? absl::StrCat("{", members, R"("stream":true,"prompt":"u"})")
                               : absl::StrCat("{", chat ? kStreamTools : kMessageStreamTools,
                                              members, R"("stream":true,"max_tokens":9,)",
                                              R"("messages":[{"role":"user","content":"u"}]})");
  const Json json = ParseJsonBody(body).value();
  if (kind == ApiKind::kCompletion) return ReadCompletion(json, false).value();
  if (chat) return ReadChat(json, StreamAssets(), absl::UnixEpoch(), false).value();
  return ReadAnthropic(json, StreamAssets(), {}).value();
}

constexpr ApiKind kStreamed[] = {ApiKind::kCompletion, ApiKind::kChat, ApiKind::kMessage};

std::unique_ptr<AnswerFormat> FormatOf(ApiRequest api, const std::string& id) {
  const AnswerHead head = {id, 0, "hash", "f"};
  const model::Tokenizer& tokenizer = *StreamAssets().tokenizer;
  api.requests.clear();
  api.prompts = 1;
  if (api.kind == ApiKind::kCompletion) return NewCompletionFormat(api, head, tokenizer);
  if (api.kind == ApiKind::kChat) return NewChatFormat(api, head, tokenizer);
  return NewAnthropicFormat(api, head, tokenizer);
}

struct StreamEvent {
  std::string id, data;
};

// The events of an answer whose text comes in pieces of `size` bytes, to a client that sends
// `last_event_id` (empty: a new stream).
std::vector<StreamEvent> StreamEvents(ApiKind kind, size_t size, const std::string& last_event_id) {
  ApiRequest api = StreamOf(kind);
  HttpRequest head;
  head.headers = {{"x-tandem-resumable", "1"}};
  if (!last_event_id.empty()) head.headers.emplace_back("last-event-id", last_event_id);
  const auto random = NewSeededRandom(7);
  std::string id = last_event_id.empty() ? "answer/1" : "drawn";
  EXPECT_OK(MakeResumable(head, "fingerprint", *random, id, api));
  EXPECT_EQ(id, "answer/1");
  EXPECT_EQ(api.resumes, !last_event_id.empty());
  api.include_usage = kind != ApiKind::kMessage;
  const auto format = FormatOf(std::move(api), id);
  const absl::string_view text =
      R"(so <tool_call>{"name":"f","arguments":{"x":1}}</tool_call> and <tool_call>)"
      R"({"name":"f","arguments":{"x":2}}</tool_call> more)";
  std::string events;
  v1::GenerateResponse part;
  part.mutable_started()->set_prompt_tokens(7);
  format->Add(0, part, &events);
  for (size_t at = 0; at < text.size(); at += size) {
    format->AddText(0, 0, text.substr(at, size), &events);
  }
  part.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  format->Add(0, part, &events);
  format->EndEvents(events);
  std::vector<StreamEvent> list;
  for (const absl::string_view block : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
    StreamEvent& event = list.emplace_back();
    for (absl::string_view line : absl::StrSplit(block, '\n')) {
      if (absl::ConsumePrefix(&line, "id: ")) event.id = std::string(line);
      if (absl::ConsumePrefix(&line, "data: ")) event.data = std::string(line);
    }
  }
  return list;
}

// What a client makes of events: the text, and everything that is not text, in order. A chat's
// calls and its text are two sequences, as its clients keep them apart.
struct Made {
  std::string text;
  std::vector<std::string> others;

  void Take(ApiKind kind, const StreamEvent& event) {
    if (event.data == "[DONE]") return;
    const Json json = ParseJsonBody(event.data).value();
    const auto has_text = [&](const Json& at, const char* name) {
      if (!at.contains(name) || at[name] == "") return false;
      text += at[name].get<std::string>();
      if (kind == ApiKind::kMessage) others.emplace_back("text");
      return true;
    };
    if (kind == ApiKind::kMessage && json.contains("delta") && has_text(json["delta"], "text")) {
      if (others.size() > 1 && others[others.size() - 2] == "text") others.pop_back();
      return;
    }
    if (json.contains("choices") && !json["choices"].empty()) {
      const Json& choice = json["choices"][0];
      if (has_text(choice.contains("delta") ? choice["delta"] : choice,
                   kind == ApiKind::kChat ? "content" : "text")) {
        return;
      }
    }
    others.push_back(event.data);
  }
  bool operator==(const Made&) const = default;
};

TEST(StreamResumption, EachEventComesOnceWhereverAStreamBreaksOff) {
  for (const ApiKind kind : kStreamed) {
    Made whole;
    for (const StreamEvent& event : StreamEvents(kind, 1000, "")) whole.Take(kind, event);
    EXPECT_GE(whole.text.size(), 10u);
    for (const size_t first : {size_t{1}, size_t{5}, size_t{1000}}) {
      const std::vector<StreamEvent> all = StreamEvents(kind, first, "");
      for (size_t had = 1; had < all.size(); ++had) {
        if (all[had - 1].data == "[DONE]") continue;
        ASSERT_FALSE(all[had - 1].id.empty()) << all[had - 1].data;
        for (const size_t second : {size_t{1}, size_t{7}, size_t{1000}}) {
          Made made;
          for (size_t i = 0; i < had; ++i) made.Take(kind, all[i]);
          // The second stream breaks off after its first event, too.
          const std::vector<StreamEvent> again = StreamEvents(kind, second, all[had - 1].id);
          if (!again.empty() && !again[0].id.empty()) {
            made.Take(kind, again[0]);
            for (const StreamEvent& event : StreamEvents(kind, first, again[0].id))
              made.Take(kind, event);
          } else {
            for (const StreamEvent& event : again) made.Take(kind, event);
          }
          EXPECT_EQ(made.text, whole.text);
          EXPECT_EQ(made.others, whole.others)
              << static_cast<int>(kind) << ": " << had << " events in pieces of " << first
              << ", then pieces of " << second;
        }
      }
    }
  }
}

// The result of MakeResumable for `api`, with these headers.
absl::Status Resumable(ApiRequest api, HttpHeaders headers, std::string id = "answer",
                       const std::string& fingerprint = "fingerprint") {
  HttpRequest head;
  head.headers = std::move(headers);
  const auto random = NewSeededRandom(7);
  return MakeResumable(head, fingerprint, *random, id, api);
}

TEST(StreamResumption, NothingChangesUnlessAsked) {
  ApiRequest api = StreamOf(ApiKind::kChat);
  HttpRequest head;
  const auto random = NewSeededRandom(7);
  std::string id = "answer";
  EXPECT_OK(MakeResumable(head, "f", *random, id, api));
  EXPECT_EQ(api.event_id_begin, "");
  EXPECT_FALSE(api.requests[0].sampling().has_seed());
  EXPECT_FALSE(api.resumes);
  EXPECT_FALSE(NamesLastEvent(head));
}

TEST(StreamResumption, OnlyStreamsOfOneTextCanBeContinued) {
  const HttpHeaders wish = {{"x-tandem-resumable", "true"}};
  const auto refused =
      StatusIs(absl::StatusCode::kUnimplemented, StartsWith("x-tandem-resumable:"));
  EXPECT_OK(Resumable(StreamOf(ApiKind::kCompletion), wish));
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kCompletion, R"("n":2,)"), wish), refused);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kCompletion, R"("logprobs":1,)"), wish), refused);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat, R"("return_token_ids":true,)"), wish), refused);
  ApiRequest whole = StreamOf(ApiKind::kChat);
  whole.stream = false;
  EXPECT_THAT(Resumable(whole, wish), refused);
  ApiRequest ollama = StreamOf(ApiKind::kChat);
  ollama.kind = ApiKind::kOllamaChat;
  EXPECT_THAT(Resumable(ollama, wish), refused);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), wish, "line\nend"),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("request_id: ")));
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), wish, std::string(129, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("request_id: ")));
  EXPECT_OK(Resumable(StreamOf(ApiKind::kChat), wish, std::string(128, 'x')));
}

TEST(StreamResumption, APlaceBelongsToItsRequest) {
  const std::string last = StreamEvents(ApiKind::kChat, 1000, "")[1].id;
  const HttpHeaders headers = {{"last-event-id", last}};
  EXPECT_OK(Resumable(StreamOf(ApiKind::kChat), headers));
  const std::vector<std::string> parts = absl::StrSplit(last, '/');
  uint64_t seed = 0;
  ASSERT_TRUE(absl::SimpleHexAtoi(parts[2], &seed));
  EXPECT_OK(Resumable(StreamOf(ApiKind::kChat, absl::StrCat("\"seed\":", seed, ",")), headers));
  EXPECT_OK(
      Resumable(StreamOf(ApiKind::kChat, R"("priority":1,"request_id":"answer/1",)"), headers));
  const auto other = StatusIs(absl::StatusCode::kInvalidArgument,
                              StartsWith("last-event-id: names an answer to another request"));
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat, R"("temperature":0.5,)"), headers), other);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat, R"("seed":1,)"), headers), other);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat, R"("request_id":"2",)"), headers), other);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kMessage), headers), other);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), headers, "answer", "other weights"), other);
}

TEST(StreamResumption, APlaceThatIsNoneIsRefused) {
  for (const char* wrong : {"17", "a/b/c", "a/1/2/3", "a/1/2/3.x", "a/1/2/-3.4", "a/x/2/3.4",
                            "/1/2/3.4", "a/1/2/3.4.5", "a/1/2/99999999999999999999.1"}) {
    EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), {{"last-event-id", wrong}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith(absl::StrCat("last-event-id: \"", wrong))));
  }
}

}  // namespace
}  // namespace tandem::router
