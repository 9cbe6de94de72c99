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
#include "router/front_end/http/ollama_format.h"
#include "router/front_end/http/ollama_request.h"
#include "router/front_end/http/response_format.h"
#include "router/front_end/http/response_request.h"
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
  constexpr char kConversation[] = R"("messages":[{"role":"user","content":"u"}]})";
  std::string body = absl::StrCat("{", members, R"("stream":true,)");
  switch (kind) {
    case ApiKind::kCompletion:
    case ApiKind::kOllamaGenerate:
      absl::StrAppend(&body, R"("prompt":"u"})");
      break;
    case ApiKind::kChat:
    case ApiKind::kOllamaChat:
      absl::StrAppend(&body, kStreamTools, kConversation);
      break;
    case ApiKind::kMessage:
      absl::StrAppend(&body, kMessageStreamTools, R"("max_tokens":9,)", kConversation);
      break;
    case ApiKind::kResponse:
      absl::StrAppend(&body, R"("tools":[{"type":"function","name":"f"}],"input":"u"})");
  }
  const Json json = ParseJsonBody(body).value();
  const ModelAssets& assets = StreamAssets();
  switch (kind) {
    case ApiKind::kCompletion:
      return ReadCompletion(json, false).value();
    case ApiKind::kChat:
      return ReadChat(json, assets, absl::UnixEpoch(), false).value();
    case ApiKind::kMessage:
      return ReadAnthropic(json, assets, {}).value();
    case ApiKind::kOllamaChat:
      return ReadOllamaChat(json, assets, {}).value();
    case ApiKind::kOllamaGenerate:
      return ReadOllamaGenerate(json, assets, {}).value();
    case ApiKind::kResponse:
      break;
  }
  return ReadResponse(json, assets, absl::UnixEpoch(), {}).value();
}

std::unique_ptr<AnswerFormat> FormatOf(ApiRequest api, const std::string& id) {
  const AnswerHead head = {id, 0, "hash", "f"};
  const model::Tokenizer& tokenizer = *StreamAssets().tokenizer;
  api.requests.clear();
  api.prompts = 1;
  if (api.kind == ApiKind::kCompletion) return NewCompletionFormat(api, head, tokenizer);
  if (api.kind == ApiKind::kChat) return NewChatFormat(api, head, tokenizer);
  if (api.kind == ApiKind::kMessage) return NewAnthropicFormat(api, head, tokenizer);
  if (api.kind == ApiKind::kResponse) return NewResponseFormat(api, head, tokenizer);
  return NewOllamaFormat(api, head, tokenizer);
}

bool IsOllamas(ApiKind kind) {
  return kind == ApiKind::kOllamaChat || kind == ApiKind::kOllamaGenerate;
}

// A kind of stream: its endpoint, further members of its request, and whether its parts bring
// tokens.
struct Streamed {
  ApiKind kind;
  const char* members = "";
  bool tokens = false;
};
constexpr Streamed kStreamed[] = {
    {ApiKind::kCompletion},
    {ApiKind::kChat},
    {ApiKind::kMessage},
    {ApiKind::kResponse},
    {ApiKind::kOllamaChat},
    {ApiKind::kOllamaGenerate},
    {ApiKind::kCompletion, R"("logprobs":1,"echo":true,"return_token_ids":true,)", true},
    {ApiKind::kCompletion, R"("return_token_ids":true,)", true},
    {ApiKind::kChat, R"("logprobs":true,"top_logprobs":1,"return_token_ids":true,)", true},
    {ApiKind::kResponse, R"("include":["message.output_text.logprobs"],"tool_choice":"none",)",
     true}};

struct StreamEvent {
  std::string id, data;
};

std::vector<StreamEvent> EventsIn(const std::string& text, bool lines) {
  std::vector<StreamEvent> list;
  for (const absl::string_view block :
       absl::StrSplit(text, lines ? "\n" : "\n\n", absl::SkipEmpty())) {
    StreamEvent& event = list.emplace_back();
    if (lines) {
      event.data = std::string(block);
      event.id = ParseJsonBody(block).value()["event_id"].get<std::string>();
      continue;
    }
    for (absl::string_view line : absl::StrSplit(block, '\n')) {
      if (absl::ConsumePrefix(&line, "id: ")) event.id = std::string(line);
      if (absl::ConsumePrefix(&line, "data: ")) event.data = std::string(line);
    }
  }
  return list;
}

// The parts of an answer whose text comes in pieces of `size` bytes; with tokens, one for each
// byte.
void AddParts(const Streamed& streamed, size_t size, AnswerFormat& format, std::string& events) {
  const absl::string_view text =
      R"(so <tool_call>{"name":"f","arguments":{"x":1}}</tool_call> and <tool_call>)"
      R"({"name":"f","arguments":{"x":2}}</tool_call> more)";
  v1::GenerateResponse part;
  part.mutable_started()->set_prompt_tokens(7);
  for (const int id : {70, 71, 72}) part.mutable_started()->add_prompt_token_ids(id);
  format.Add(0, part, &events);
  if (streamed.tokens) {
    for (const int id : {71, 72}) {
      part.mutable_prompt_logprobs()->add_tokens()->set_token_id(id);
    }
    format.Add(0, part, &events);
  }
  for (size_t at = 0; at < text.size(); at += size) {
    const absl::string_view piece = text.substr(at, size);
    if (!streamed.tokens) {
      format.AddText(0, 0, piece, &events);
      continue;
    }
    // The last byte of a piece is held back, as the beginning of a stop string would be.
    const size_t begin = at == 0 ? 0 : at - 1;
    const size_t end = at + size >= text.size() ? text.size() : at + size - 1;
    part.mutable_delta()->set_text(std::string(text.substr(begin, end - begin)));
    part.mutable_delta()->clear_tokens();
    for (size_t i = 0; i < piece.size(); ++i) {
      v1::GeneratedToken& token = *part.mutable_delta()->add_tokens();
      token.set_token_id(static_cast<int32_t>(at + i));
      token.set_logprob(-static_cast<float>(at + i));
    }
    format.Add(0, part, &events);
  }
  part.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  format.Add(0, part, &events);
}

// The events of an answer whose text comes in pieces of `size` bytes, to a client that sends
// `last_event_id` (empty: a new stream).
std::vector<StreamEvent> StreamEvents(const Streamed& streamed, size_t size,
                                      const std::string& last_event_id) {
  ApiRequest api = StreamOf(streamed.kind, streamed.members);
  HttpRequest head;
  head.headers = {{"x-tandem-resumable", "1"}};
  if (!last_event_id.empty()) head.headers.emplace_back("last-event-id", last_event_id);
  const auto random = NewSeededRandom(7);
  std::string id = last_event_id.empty() ? "answer/1" : "drawn";
  EXPECT_OK(MakeResumable(head, "fingerprint", *random, id, api));
  EXPECT_EQ(id, "answer/1");
  EXPECT_EQ(api.resumes, !last_event_id.empty());
  api.include_usage = streamed.kind == ApiKind::kCompletion || streamed.kind == ApiKind::kChat;
  const auto format = FormatOf(std::move(api), id);
  std::string events;
  AddParts(streamed, size, *format, events);
  format->EndEvents(events);
  return EventsIn(events, IsOllamas(streamed.kind));
}

// What a client makes of events: the text, what is said of tokens, and everything else, each in
// order. Where an API keeps text and calls in one order, `others` says where text stood.
struct Made {
  explicit Made(ApiKind kind) : kind_(kind) {}

  std::string text;
  std::vector<std::string> logprobs, token_ids, others;
  std::vector<int64_t> numbers;

  void Take(const StreamEvent& event) {
    if (event.data == "[DONE]") return;
    Json json = ParseJsonBody(event.data).value();
    for (const char* changes : {"created_at", "event_id"}) json.erase(changes);
    if (json.contains("sequence_number")) {
      numbers.push_back(json["sequence_number"].get<int64_t>());
      json.erase("sequence_number");
    }
    if (json.contains("response") && json["response"].is_object()) {
      json["response"].erase("completed_at");
    }
    if (json.contains("choices") && !json["choices"].empty()) {
      Json& choice = json["choices"][0];
      if (!choice["finish_reason"].is_null()) return others.push_back(json.dump());
      return TakeChoice(choice);
    }
    if (IsOllamas(kind_)) return TakeLine(json);
    if (kind_ == ApiKind::kResponse && json["type"] == "response.output_text.delta") {
      TakeList(json["logprobs"], logprobs);
      return TakeText(json["delta"]);
    }
    if (kind_ == ApiKind::kMessage && json.contains("delta") && json["delta"].contains("text")) {
      return TakeText(json["delta"]["text"]);
    }
    others.push_back(json.dump());
  }
  bool operator==(const Made&) const = default;

 private:
  static void TakeList(const Json& list, std::vector<std::string>& to) {
    for (const Json& one : list) to.push_back(one.dump());
  }

  void TakeText(const Json& piece) {
    text += piece.get<std::string>();
    if (others.empty() || others.back() != "text") others.emplace_back("text");
  }

  void TakeChoice(const Json& choice) {
    if (choice.contains("token_ids")) TakeList(choice["token_ids"], token_ids);
    const Json& about = choice["logprobs"];
    if (about.contains("content")) TakeList(about["content"], logprobs);
    if (about.contains("tokens")) {
      for (size_t i = 0; i < about["tokens"].size(); ++i) {
        logprobs.push_back(absl::StrCat(about["text_offset"][i].dump(), about["tokens"][i].dump(),
                                        about["token_logprobs"][i].dump(),
                                        about["top_logprobs"][i].dump()));
      }
    }
    const Json& content = choice.contains("delta") ? choice["delta"] : choice;
    if (content.contains("role") || content.contains("tool_calls")) {
      return others.push_back(content.dump());
    }
    text += content.value(choice.contains("delta") ? "content" : "text", "");
  }

  // Ollama's calls may share a line with text.
  void TakeLine(Json& line) {
    const bool chat = line.contains("message");
    Json& holder = chat ? line["message"] : line;
    text += holder.value(chat ? "content" : "response", "");
    if (holder.contains("tool_calls")) TakeList(holder["tool_calls"], others);
    if (line["done"] == true) others.push_back(line.dump());
  }

  ApiKind kind_;
};

// The client's side of a stream that broke off after `had` events of `all`, was continued, broke
// off after the first event that followed, and was continued again.
Made MakeOf(const Streamed& streamed, const std::vector<StreamEvent>& all, size_t had,
            size_t second, size_t third) {
  Made made(streamed.kind);
  for (size_t i = 0; i < had; ++i) made.Take(all[i]);
  const std::vector<StreamEvent> again = StreamEvents(streamed, second, all[had - 1].id);
  if (again.empty() || again[0].id.empty()) {
    for (const StreamEvent& event : again) made.Take(event);
    return made;
  }
  made.Take(again[0]);
  for (const StreamEvent& event : StreamEvents(streamed, third, again[0].id)) made.Take(event);
  return made;
}

TEST(StreamResumption, EachEventComesOnceWhereverAStreamBreaksOff) {
  for (const Streamed& streamed : kStreamed) {
    Made whole(streamed.kind);
    for (const StreamEvent& event : StreamEvents(streamed, 1000, "")) whole.Take(event);
    EXPECT_GE(whole.text.size(), 10u);
    EXPECT_GE(whole.logprobs.size() + whole.token_ids.size(), streamed.tokens ? 100u : 0u);
    for (const size_t first : {size_t{1}, size_t{5}, size_t{1000}}) {
      const std::vector<StreamEvent> all = StreamEvents(streamed, first, "");
      for (size_t had = 1; had < all.size(); ++had) {
        if (all[had - 1].data == "[DONE]") continue;
        ASSERT_FALSE(all[had - 1].id.empty()) << all[had - 1].data;
        for (const size_t second : {size_t{1}, size_t{7}, size_t{1000}}) {
          const Made made = MakeOf(streamed, all, had, second, first);
          EXPECT_EQ(made.text, whole.text);
          EXPECT_EQ(made.logprobs, whole.logprobs);
          EXPECT_EQ(made.token_ids, whole.token_ids);
          ASSERT_EQ(made.others, whole.others)
              << static_cast<int>(streamed.kind) << streamed.members << ": " << had
              << " events in pieces of " << first << ", then pieces of " << second;
          for (size_t i = 0; i < made.numbers.size(); ++i) {
            ASSERT_EQ(made.numbers[i], static_cast<int64_t>(i));
          }
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

// The events of three answers that interleave as `order` says, each of whose tokens is one byte of
// its text, to a client that sends `last_event_id`.
std::vector<StreamEvent> SeveralEvents(ApiKind kind, const std::vector<int32_t>& order,
                                       const std::string& last_event_id) {
  ApiRequest api = StreamOf(kind, R"("n":3,"return_token_ids":true,)");
  HttpRequest head;
  head.headers = {{"x-tandem-resumable", "1"}};
  if (!last_event_id.empty()) head.headers.emplace_back("last-event-id", last_event_id);
  const auto random = NewSeededRandom(7);
  std::string id = "answer";
  EXPECT_OK(MakeResumable(head, "fingerprint", *random, id, api));
  api.include_usage = true;
  const auto format = FormatOf(std::move(api), id);
  std::string events;
  v1::GenerateResponse part;
  part.mutable_started()->set_prompt_tokens(7);
  format->Add(0, part, &events);
  int32_t tokens[3] = {};
  for (const int32_t answer : order) {
    part.mutable_delta()->set_sequence_index(answer);
    part.mutable_delta()->set_text(std::string(1, static_cast<char>('a' + tokens[answer])));
    part.mutable_delta()->clear_tokens();
    part.mutable_delta()->add_tokens()->set_token_id(100 * answer + tokens[answer]++);
    format->Add(0, part, &events);
    if (tokens[answer] < 6) continue;
    part.mutable_finished()->set_sequence_index(answer);
    part.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
    format->Add(0, part, &events);
  }
  format->EndEvents(events);
  return EventsIn(events, /*lines=*/false);
}

// What a client makes of the events of several answers: of each its text, ids and other events.
std::vector<Made> MakeOfSeveral(ApiKind kind, const std::vector<StreamEvent>& events) {
  std::vector<Made> made(4, Made(kind));  // the last: what belongs to no answer
  for (const StreamEvent& event : events) {
    if (event.data == "[DONE]") continue;
    const Json json = ParseJsonBody(event.data).value();
    const Json& choices = json["choices"];
    made[choices.empty() ? 3 : choices[0]["index"].get<size_t>()].Take(event);
  }
  return made;
}

TEST(StreamResumption, SeveralAnswersGoOnEachAtItsOwnPlace) {
  // One after the other, alternately, and in the other direction.
  const std::vector<int32_t> orders[] = {{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2},
                                         {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2},
                                         {2, 2, 1, 2, 1, 2, 0, 2, 2, 1, 1, 0, 0, 1, 1, 0, 0, 0}};
  for (const ApiKind kind : {ApiKind::kCompletion, ApiKind::kChat}) {
    const std::vector<Made> whole = MakeOfSeveral(kind, SeveralEvents(kind, orders[0], ""));
    ASSERT_EQ(whole[2].text, "abcdef");
    ASSERT_EQ(whole[2].token_ids.size(), 6u);
    ASSERT_EQ(whole[3].others.size(), 1u) << "the usage";
    for (const auto& first : orders) {
      const std::vector<StreamEvent> all = SeveralEvents(kind, first, "");
      for (size_t had = 1; had < all.size(); ++had) {
        for (const auto& second : orders) {
          std::vector<StreamEvent> events(all.begin(), all.begin() + static_cast<ptrdiff_t>(had));
          for (StreamEvent& event : SeveralEvents(kind, second, all[had - 1].id)) {
            events.push_back(std::move(event));
          }
          ASSERT_EQ(MakeOfSeveral(kind, events), whole) << "after " << all[had - 1].id;
        }
      }
    }
  }
}

TEST(StreamResumption, ThePlacesOfOtherAnswersAreRefused) {
  const std::vector<StreamEvent> events = SeveralEvents(ApiKind::kChat, {0}, "");
  const std::string last = events[events.size() - 2].id;  // of the usage
  EXPECT_THAT(last, ::testing::EndsWith(",0.1"));
  const std::string members = R"("n":3,"return_token_ids":true,)";
  EXPECT_OK(Resumable(StreamOf(ApiKind::kChat, members), {{"last-event-id", last}}));
  for (const std::string& wrong :
       {last.substr(0, last.rfind(',')), absl::StrCat(last, ",0.1"), absl::StrCat(last, ","),
        absl::StrCat(last, std::string(30000, ','))}) {
    EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat, members), {{"last-event-id", wrong}}),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("last-event-id: ")));
  }
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

TEST(StreamResumption, OnlyStreamsOfOnePromptCanBeContinued) {
  const HttpHeaders wish = {{"x-tandem-resumable", "true"}};
  const auto refused =
      StatusIs(absl::StatusCode::kUnimplemented, StartsWith("x-tandem-resumable:"));
  EXPECT_OK(Resumable(StreamOf(ApiKind::kCompletion), wish));
  EXPECT_OK(Resumable(StreamOf(ApiKind::kCompletion, R"("n":16,)"), wish));
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kCompletion, R"("n":17,)"), wish), refused);
  ApiRequest prompts = StreamOf(ApiKind::kCompletion);
  prompts.requests.push_back(prompts.requests[0]);
  EXPECT_THAT(Resumable(prompts, wish), refused);
  EXPECT_THAT(
      Resumable(StreamOf(ApiKind::kResponse, R"("include":["message.output_text.logprobs"],)"),
                wish),
      refused);
  ApiRequest whole = StreamOf(ApiKind::kChat);
  whole.stream = false;
  EXPECT_THAT(Resumable(whole, wish), refused);
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), wish, "line\nend"),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("request_id: ")));
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), wish, std::string(129, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("request_id: ")));
  EXPECT_OK(Resumable(StreamOf(ApiKind::kChat), wish, std::string(128, 'x')));
}

TEST(StreamResumption, APlaceBelongsToItsRequest) {
  const std::string last = StreamEvents({ApiKind::kChat}, 1000, "")[1].id;
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
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kOllamaChat), headers), other);
  // What an event says of tokens decides what a place counts.
  for (const char* tokens : {R"("logprobs":true,)", R"("return_token_ids":true,)"}) {
    EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat, tokens), headers), other);
  }
  EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), headers, "answer", "other weights"), other);
}

// A place at the bound: a stream goes on from it, and its counts do not overflow.
TEST(StreamResumption, TheLargestPlaceIsGoneOnFrom) {
  const std::string last = StreamEvents({ApiKind::kResponse}, 1000, "")[1].id;
  const std::string begin = last.substr(0, last.rfind('/') + 1);
  constexpr int64_t kMost = int64_t{1} << 48;
  const std::string place = absl::StrCat(kMost, ".", kMost, ".", kMost, ".", kMost);
  EXPECT_OK(Resumable(StreamOf(ApiKind::kResponse), {{"last-event-id", begin + place}}));
  StreamPosition at;
  at.text_bytes = at.events = at.tokens = at.numbered = kMost;
  EventCursor cursor("a/", 1, {at});
  EXPECT_EQ(cursor.NextNumber(), kMost);
  EXPECT_FALSE(cursor.NewEvent());
  EXPECT_EQ(cursor.NewText("text"), "");
  EXPECT_EQ(cursor.ReceivedTokens(3), 3u);
  EXPECT_EQ(cursor.Id(), absl::StrCat("a/", kMost, ".", kMost, ".", kMost, ".", kMost + 1));
}

TEST(StreamResumption, APlaceThatIsNoneIsRefused) {
  for (const char* wrong :
       {"17", "a/b/c", "a/1/2/3", "a/1/2/3.x", "a/1/2/-3.4", "a/x/2/3.4", "/1/2/3.4", "a/1/2/3.4.5",
        "a/1/2/3.4.5.-6", "a/1/2/3.4.5.6.7", "a/1/2/99999999999999999999.1",
        "a/1/2/9223372036854775807.1", "a/1/2/3.4.5.9223372036854775807", "a/1/2/281474976710657.1",
        "a/1/2/3.281474976710657", "a/1/2/3.4.281474976710657.6", "a/1/2/3.4.5.281474976710657"}) {
    EXPECT_THAT(Resumable(StreamOf(ApiKind::kChat), {{"last-event-id", wrong}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith(absl::StrCat("last-event-id: \"", wrong))));
  }
}

}  // namespace
}  // namespace tandem::router
