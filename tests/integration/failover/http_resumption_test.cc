// Goal: a stream over HTTP whose router was killed, or whose connection was lost, is continued by
// another router, or the same one, after the last event that the client received: the text is that
// of a stream that nothing disturbed, each byte once, and so are the ids of its tokens; of each
// answer, where there are several.
#include <gmock/gmock.h>
#include <signal.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"

namespace tandem::testing {
namespace {

// A stream as its client has it.
struct HttpStream {
  std::string last_id, end;
  std::string text;                        // of the first answer
  std::map<int, std::string> other_texts;  // of the others, by index
  std::vector<int> token_ids;
  std::vector<int64_t> numbers;  // of /v1/responses' events

  // Takes the whole events or lines of a body; a last one that was cut short is left out.
  void Take(absl::string_view body) {
    const bool lines = absl::StartsWith(body, "{");
    const absl::string_view border = lines ? "\n" : "\n\n";
    for (size_t end_at; (end_at = body.find(border)) != absl::string_view::npos;) {
      for (absl::string_view line : absl::StrSplit(body.substr(0, end_at), '\n')) {
        if (absl::ConsumePrefix(&line, "id: ")) last_id = std::string(line);
        if (!lines && (!absl::ConsumePrefix(&line, "data: ") || line == "[DONE]")) continue;
        TakeEvent(nlohmann::json::parse(line));
      }
      body.remove_prefix(end_at + border.size());
    }
  }

 private:
  void TakeEvent(const nlohmann::json& json) {
    if (json.contains("error") && !json["error"].is_null()) end = json["error"].dump();
    if (json.contains("choices") && !json["choices"].empty()) TakeChoice(json["choices"][0]);
    if (json.contains("sequence_number")) numbers.push_back(json["sequence_number"]);
    if (json.value("type", "") == "response.incomplete") end = "incomplete";
    if (json.contains("delta")) TakeDelta(json["delta"]);
    if (json.contains("done")) TakeLine(json);
  }
  void TakeLine(const nlohmann::json& line) {
    last_id = line.value("event_id", "");
    text += line["message"].value("content", "");
    if (line["done"] == true) end = line["done_reason"];
  }
  void TakeChoice(const nlohmann::json& choice) {
    for (const int id : choice.value("token_ids", std::vector<int>())) token_ids.push_back(id);
    const int index = choice["index"];
    std::string& its_text = index == 0 ? text : other_texts[index];
    its_text += choice.value("text", "");
    if (choice.contains("delta")) its_text += choice["delta"].value("content", "");
    if (choice["finish_reason"].is_string()) end = choice["finish_reason"];
  }
  void TakeDelta(const nlohmann::json& delta) {
    if (delta.is_string()) text += delta.get<std::string>();
    if (!delta.is_object()) return;
    text += delta.value("text", "");
    if (delta.contains("stop_reason") && delta["stop_reason"].is_string()) {
      end = delta["stop_reason"];
    }
  }
};

struct Asked {
  const char *path, *begin, *end;  // of the body, whose parameters follow `begin`
  // What else the endpoint calls otherwise.
  const char* max_tokens = "max_tokens";
  bool has_options = false;  // Ollama's: an object with the sampling parameters
};
constexpr Asked kAsked[] = {
    {"/v1/completions", R"({"prompt":"Once upon a time")", "length"},
    {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hi"}])", "length"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"Hi"}],"logprobs":true,"return_token_ids":true)",
     "length"},
    {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hi"}],"n":3)", "length"},
    {"/v1/messages", R"({"messages":[{"role":"user","content":"Hi"}])", "max_tokens"},
    {"/v1/responses", R"({"input":"Hi")", "incomplete", "max_output_tokens"},
    {"/api/chat", R"({"messages":[{"role":"user","content":"Hi"}])", "length", "num_predict",
     true}};

std::string StreamRequest(const Asked& asked, const std::string& members,
                          const std::string& headers) {
  const std::string parameters =
      absl::StrCat("\"", asked.max_tokens, R"(":700,"temperature":1,"ignore_eos":true)", members);
  return PostOf(asked.path,
                asked.has_options
                    ? absl::StrCat(asked.begin, R"(,"stream":true,"options":{)", parameters, "}}")
                    : absl::StrCat(asked.begin, R"(,"stream":true,)", parameters, "}"),
                headers);
}

class HttpResumption : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string fleet;
    for (const char* id : {"router-0", "router-1"}) {
      auto router = RunningProgram::Start({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                                           "--http=127.0.0.1:0", "--fleet=127.0.0.1:0",
                                           absl::StrCat("--id=", id)});
      ASSERT_OK(router.status());
      routers_.push_back(*std::move(router));
      addresses_.push_back(routers_.back()->AwaitField("router started", "http"));
      absl::StrAppend(&fleet, fleet.empty() ? "" : ",",
                      routers_.back()->AwaitField("router started", "fleet"));
    }
    for (const char* kind : {"prefill", "decode"}) {
      auto node = RunningProgram::Start({absl::StrCat("tandem-", kind, "-node"), "--engine=hash",
                                         absl::StrCat("--id=", kind, "-0"),
                                         absl::StrCat("--routers=", fleet), "--kv-blocks=1024",
                                         "--hash-step-time=2ms"});
      ASSERT_OK(node.status());
      nodes_.push_back(*std::move(node));
      for (const char* id : {"router-0", "router-1"}) {
        ASSERT_FALSE(nodes_.back()->AwaitLine(absl::StrCat("router_id=", id)).empty());
      }
    }
  }

  // Asks router 0 for a stream and reads its first events.
  std::unique_ptr<HttpSocket> Begin(const Asked& asked) {
    auto socket = std::make_unique<HttpSocket>(addresses_[0]);
    socket->Send(StreamRequest(asked, "", "x-tandem-resumable: 1\r\n"));
    const auto ids = [&] {
      const char* const before = asked.has_options ? "\"event_id\":" : "\nid: ";
      const std::vector<std::string> pieces = absl::StrSplit(socket->buffer(), before);
      return pieces.size() - 1;
    };
    while (ids() < 20 && socket->ReadSome()) {
    }
    EXPECT_GE(ids(), 20u) << socket->buffer();
    return socket;
  }

  // The same body again, after the last event of `stream`.
  void Continue(const Asked& asked, size_t router, HttpStream& stream) {
    const HttpAnswer answer =
        Ask(addresses_[router],
            StreamRequest(asked, "", absl::StrCat("last-event-id: ", stream.last_id, "\r\n")));
    EXPECT_EQ(answer.status, 200) << answer.body;
    stream.Take(answer.body);
  }

  // The stream that nothing disturbs; the seed stands in the ids of events.
  HttpStream Undisturbed(const Asked& asked, const std::string& id) {
    const std::vector<std::string> parts = absl::StrSplit(id, '/');
    uint64_t seed = 0;
    EXPECT_TRUE(absl::SimpleHexAtoi(parts[parts.size() - 3], &seed)) << id;
    HttpStream whole;
    whole.Take(Ask(addresses_[1], StreamRequest(asked, absl::StrCat(",\"seed\":", seed), "")).body);
    EXPECT_EQ(whole.end, asked.end);
    return whole;
  }

  std::vector<std::unique_ptr<RunningProgram>> routers_, nodes_;
  std::vector<std::string> addresses_;
};

TEST_F(HttpResumption, AnotherRouterContinuesTheStreamsOfADeadOne) {
  std::vector<std::unique_ptr<HttpSocket>> sockets;
  for (const Asked& asked : kAsked) sockets.push_back(Begin(asked));
  routers_[0]->Signal(SIGKILL);
  for (size_t i = 0; i < sockets.size(); ++i) {
    const HttpAnswer cut = sockets[i]->Read();
    EXPECT_FALSE(cut.complete);
    HttpStream stream;
    stream.Take(cut.body);
    EXPECT_EQ(stream.end, "") << "the stream ended before its router did";
    EXPECT_GE(stream.text.size(), 10u);
    Continue(kAsked[i], 1, stream);
    EXPECT_EQ(stream.end, kAsked[i].end);
    const HttpStream whole = Undisturbed(kAsked[i], stream.last_id);
    EXPECT_EQ(stream.text, whole.text) << kAsked[i].path;
    EXPECT_EQ(stream.other_texts, whole.other_texts);
    EXPECT_EQ(stream.token_ids, whole.token_ids);
    for (size_t n = 0; n < stream.numbers.size(); ++n) {
      ASSERT_EQ(stream.numbers[n], static_cast<int64_t>(n));
    }
  }
}

// The router has not noticed that the client is gone: the lost stream ends.
TEST_F(HttpResumption, TheSameRouterReplacesTheLostStream) {
  for (const Asked& asked : kAsked) {
    const std::unique_ptr<HttpSocket> lost = Begin(asked);
    const std::string before = asked.has_options ? "\"event_id\":\"" : "\nid: ";
    const size_t begin = lost->buffer().find(before) + before.size();
    const size_t end = lost->buffer().find(asked.has_options ? '"' : '\n', begin);
    HttpStream stream;
    stream.last_id = lost->buffer().substr(begin, end - begin);
    Continue(asked, 0, stream);
    EXPECT_EQ(stream.end, asked.end);
    HttpStream replaced;
    replaced.Take(lost->Read().body);
    EXPECT_NE(replaced.end, asked.end);
    // All but the text of the first events.
    const std::string whole = Undisturbed(asked, stream.last_id).text;
    EXPECT_THAT(whole, ::testing::EndsWith(stream.text));
    EXPECT_GT(stream.text.size() + 200, whole.size());
  }
}

}  // namespace
}  // namespace tandem::testing
