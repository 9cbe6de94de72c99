// Goal: every kind of bad request gets the right status and an error object that names the field,
// on a server that then goes on; broken HTTP and half-closed sockets end their own connection only.
#include <gmock/gmock.h>

#include <array>
#include <functional>

#include "tests/testing/http_client.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

struct Bad {
  std::string body;
  int status;
  std::string param;  // "" = null
  std::string says;
};

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

class BadHttp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cluster = TestCluster::Start({"--engine=hash", "--prefill=1", "--kv-blocks=256"});
    ASSERT_OK(cluster.status());
    cluster_ = *std::move(cluster);
  }
  static void TearDownTestSuite() {
    if (cluster_ == nullptr) return;
    EXPECT_OK(AwaitQuiet(cluster_->client(), absl::Seconds(15)).status());
    EXPECT_EQ(cluster_->Stop(), "exit code 0");
    cluster_ = nullptr;
  }
  static const std::string& http() { return cluster_->http_address(); }

  static void ExpectError(const HttpAnswer& answer, const Bad& bad) {
    EXPECT_EQ(answer.status, bad.status) << answer.body;
    const nlohmann::json error = answer.Json().value("error", nlohmann::json());
    ASSERT_TRUE(error.is_object()) << answer.body;
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"], bad.param) << answer.body;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(bad.says));
    EXPECT_FALSE(error["type"].get<std::string>().empty());
    EXPECT_TRUE(error.contains("code"));
  }
  static void ExpectServes() {
    const HttpAnswer answer =
        Ask(http(), PostOf("/v1/completions", R"({"prompt":"ok","max_tokens":2})"));
    EXPECT_EQ(answer.status, 200) << answer.body;
  }

  static std::unique_ptr<TestCluster> cluster_;
};

std::unique_ptr<TestCluster> BadHttp::cluster_;

TEST_F(BadHttp, CompletionBodies) {
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  const std::vector<Bad> table = {
      {"", 400, "body", "empty"},
      {"{", 400, "body", "not valid JSON at byte"},
      {"[1]", 400, "body", "expected a JSON object"},
      {"null", 400, "body", "expected a JSON object"},
      {"{}", 400, "prompt", "got none"},
      {R"({"prompt":null})", 400, "prompt", "got none"},
      {R"({"prompt":{}})", 400, "prompt", "got object"},
      {R"({"prompt":[]})", 400, "prompt", "empty list"},
      {R"({"prompt":[[]]})", 400, "prompt", "empty"},
      {R"({"prompt":["a",1]})", 400, "prompt[1]", "number"},
      {R"({"prompt":[1,"a"]})", 400, "prompt[1]", "token id"},
      {R"({"prompt":[1.5]})", 400, "prompt[0]", "1.5"},
      {R"({"prompt":[-1]})", 400, "prompt[0]", "-1"},
      {R"({"prompt":[99999999999999999999]})", 400, "prompt[0]", "token id"},
      {R"({"prompt":[300]})", 400, "prompt", "300"},
      {R"({"prompt":"x","prompt":"y"})", 400, "prompt", "given twice"},
      {R"({"prompt":"\ud800"})", 400, "prompt", "surrogate"},
      {"{\"prompt\":\"\xff\xfe\"}", 400, "prompt", "UTF-8"},
      {std::string("{\"prompt\":\"a\0b\"}", 16), 400, "prompt", "not valid JSON"},
      {R"({"prompt":"x","metadata":)" + deep + "}", 400, "metadata" + Repeated("[0]", 63),
       "nested deeper"},
  };
  for (const Bad& bad : table) {
    SCOPED_TRACE(bad.body.substr(0, 200));
    ExpectError(Ask(http(), PostOf("/v1/completions", bad.body)), bad);
  }
  ExpectServes();
}

TEST_F(BadHttp, CompletionValues) {
  const std::vector<Bad> table = {
      {R"({"prompt":"x","temperature":1e400})", 400, "temperature", "overflow"},
      {R"({"prompt":"x","temperature":-0.5})", 400, "temperature", "-0.5"},
      {R"({"prompt":"x","temperature":"hot"})", 400, "temperature", "expected a number"},
      {R"({"prompt":"x","top_p":-0.5})", 400, "top_p", "-0.5"},
      {R"({"prompt":"x","top_p":1.5})", 400, "top_p", "1.5"},
      {R"({"prompt":"x","top_k":-2})", 400, "top_k", "-2"},
      {R"({"prompt":"x","top_k":1.5})", 400, "top_k", "whole number"},
      {R"({"prompt":"x","min_p":2})", 400, "min_p", "2"},
      {R"({"prompt":"x","presence_penalty":3})", 400, "presence_penalty", "3"},
      {R"({"prompt":"x","frequency_penalty":-3})", 400, "frequency_penalty", "-3"},
      {R"({"prompt":"x","repetition_penalty":0})", 400, "repetition_penalty", "0"},
      {R"({"prompt":"x","max_tokens":0})", 400, "max_tokens", "0"},
      {R"({"prompt":"x","max_tokens":0,"logprobs":1})", 400, "max_tokens", "0"},
      {R"({"prompt":"x","max_tokens":0,"echo":true,"use_beam_search":true})", 400,
       "use_beam_search", "max_tokens 0"},
      {R"({"prompt":"x","max_tokens":-1,"echo":true})", 400, "max_tokens", "-1"},
      {R"({"prompt":"x","truncate_prompt_tokens":40000})", 400, "truncate_prompt_tokens",
       "context"},
      {R"({"prompt":"x","max_tokens":99999999999})", 400, "max_tokens", "whole number"},
      {R"({"prompt":"x","max_tokens":40000})", 400, "max_tokens", "context"},
      {R"({"prompt":"x","max_tokens":true})", 400, "max_tokens", "true"},
      {R"({"prompt":"x","min_tokens":17})", 400, "min_tokens", "17"},
      {R"({"prompt":"x","seed":18446744073709551616})", 400, "seed", "whole number"},
      {R"({"prompt":"x","n":0})", 400, "n", "0"},
      {R"({"prompt":"x","n":1000})", 400, "n", "1000"},
      {R"({"prompt":"x","n":2,"best_of":1})", 400, "best_of", "at least n = 2"},
      {R"({"prompt":"x","logprobs":21})", 400, "logprobs", "21"},
      {R"({"prompt":"x","stop":5})", 400, "stop", "5"},
      {R"({"prompt":"x","stop":["a",5]})", 400, "stop[1]", "expected a string"},
      {R"({"prompt":"x","stop":""})", 400, "stop[0]", "0 bytes"},
      {R"({"prompt":"x","stop_token_ids":[999]})", 400, "stop_token_ids", "999"},
      {R"({"prompt":"x","logit_bias":{"a":1}})", 400, "logit_bias.a", "token id"},
      {R"({"prompt":"x","logit_bias":{"1":"b"}})", 400, "logit_bias.1", "expected a number"},
      {R"({"prompt":"x","logit_bias":{"1":101}})", 400, "", "logit_bias of token 1: 101"},
      {R"({"prompt":"x","logit_bias":[1]})", 400, "logit_bias[0]", "a token id and a number"},
      {R"({"prompt":"x","allowed_token_ids":[1,-1]})", 400, "allowed_token_ids[1]", "-1"},
      {R"({"prompt":"x","stream":"yes"})", 400, "stream", "true or false"},
      {R"({"prompt":"x","stream_options":{}})", 400, "stream_options", "without stream"},
      {R"({"prompt":"x","stream":true,"stream_options":{"include_usage":1}})", 400,
       "stream_options.include_usage", "true or false"},
      {R"({"prompt":"x","suffix":"y"})", 400, "suffix", "not served"},
      {R"({"prompt":"x","response_format":{"type":"xml"}})", 400, "response_format.type", "xml"},
      {R"({"prompt":"x","guided_regex":"a","guided_choice":["b"]})", 400, "guided_choice",
       "beside guided_regex"},
      {R"({"prompt":"x","model":"other"})", 404, "model", "other"},
      {R"({"prompt":"x","model":7})", 400, "model", "expected a string"},
      {R"({"prompt":"x","strict":true,"temprature":1})", 400, "temprature", "unknown field"},
  };
  for (const Bad& bad : table) {
    SCOPED_TRACE(bad.body.substr(0, 200));
    ExpectError(Ask(http(), PostOf("/v1/completions", bad.body)), bad);
  }
  ExpectServes();
}

TEST_F(BadHttp, ChatBodies) {
  const std::string ok = R"("messages":[{"role":"user","content":"x"}])";
  const std::vector<Bad> table = {
      {"{}", 400, "messages", "missing"},
      {R"({"messages":[]})", 400, "messages", "at least one"},
      {R"({"messages":"x"})", 400, "messages", "list"},
      {R"({"messages":[1]})", 400, "messages[0]", "expected an object"},
      {R"({"messages":[{"content":"x"}]})", 400, "messages[0].role", "missing"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", 400, "messages[0].role", "robot"},
      {R"({"messages":[{"role":"user"}]})", 400, "messages[0].content", "missing"},
      {R"({"messages":[{"role":"user","content":5}]})", 400, "messages[0].content", "number"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", 400,
       "messages[0].content[0].type", "image_url"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}]})",
       400, "messages[0].tool_calls[0].function.arguments", "expected a JSON object"},
      {"{" + ok + R"(,"top_logprobs":3})", 400, "top_logprobs", "without logprobs"},
      {"{" + ok + R"(,"logprobs":true,"top_logprobs":21})", 400, "top_logprobs", "21"},
      {"{" + ok + R"(,"tools":{}})", 400, "tools", "list"},
      {"{" + ok + R"(,"tools":[{"type":"function"}]})", 400, "tools[0].function", "name"},
      {"{" + ok + R"(,"tool_choice":"required"})", 400, "tool_choice", "without tools"},
      {"{" + ok + R"(,"tool_choice":"maybe"})", 400, "tool_choice", "maybe"},
      {"{" + ok + R"(,"chat_template":"{{ 1 }}"})", 400, "chat_template", "not served"},
      {"{" + ok + R"(,"chat_template_kwargs":5})", 400, "chat_template_kwargs", "object"},
  };
  for (const Bad& bad : table) {
    SCOPED_TRACE(bad.body);
    ExpectError(Ask(http(), PostOf("/v1/chat/completions", bad.body)), bad);
  }
  ExpectServes();
}

// Path, body, and the body's name of what is refused after the body was read.
std::vector<std::array<std::string, 3>> LateRefusals() {
  const std::string schema = R"({"$ref":"#/$defs/none"})";
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}])";
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"a"}},)"
                            R"({"type":"function","function":{"name":"b","parameters":)" +
                            schema + "}}]";
  const std::string format = R"("type":"json_schema","name":"n","schema":)" + schema;
  const std::string long_text(40'000, 'x');
  return {
      {"/v1/completions", R"({"prompt":"x","guided_regex":"("})", "guided_regex"},
      {"/v1/completions", R"({"prompt":"x","guided_json":)" + schema + "}", "guided_json"},
      {"/v1/completions", R"({"prompt":"x","guided_grammar":"a ::="})", "guided_grammar"},
      {"/v1/completions", R"({"prompt":"x","grammar":"a ::="})", "grammar"},
      {"/v1/completions", R"({"prompt":"x","json_schema":)" + schema + "}", "json_schema"},
      {"/v1/completions", R"({"prompt":"x","guided_choice":["a","a",""]})", "guided_choice"},
      {"/v1/completions", R"({"prompt":"x","structured_outputs":{"regex":"("}})",
       "structured_outputs.regex"},
      {"/v1/completions", R"({"prompt":"x","n_predict":40000})", "n_predict"},
      {"/v1/completions", R"({"prompt":"x","repeat_penalty":-1})", "repeat_penalty"},
      {"/v1/completions", R"({"prompt":"x","use_beam_search":true,"best_of":100})", "best_of"},
      {"/v1/completions", R"({"prompt":")" + long_text + "\"}", "prompt"},
      {"/v1/chat/completions",
       chat + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":)" + schema +
           "}}}",
       "response_format.json_schema.schema"},
      {"/v1/chat/completions",
       chat + tools + R"(,"tool_choice":{"type":"function","function":{"name":"b"}}})", "tools[1]"},
      {"/v1/chat/completions", chat + R"(,"max_completion_tokens":100000})",
       "max_completion_tokens"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}",
       "messages"},
      {"/v1/responses", R"({"input":"x","text":{"format":{)" + format + "}}}",
       "text.format.schema"},
      {"/v1/responses", R"({"input":"x","guided_regex":"("})", "guided_regex"},
      {"/v1/responses", R"({"input":"x","max_output_tokens":100000})", "max_output_tokens"},
      {"/v1/responses", R"({"input":")" + long_text + "\"}", "input"},
      {"/v1/messages", chat + R"(,"max_tokens":9,"output_config":{"format":{)" + format + "}}}",
       "output_config.format.schema"},
      {"/v1/messages",
       chat + R"(,"max_tokens":9,"tool_choice":{"type":"tool","name":"b"},"tools":[{"name":"b",)" +
           R"("input_schema":)" + schema + "}]}",
       "tools[0]"},
      {"/api/chat", chat + R"(,"format":)" + schema + "}", "format"},
      {"/api/chat", R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}", "messages"},
      {"/api/generate", R"({"prompt":")" + long_text + "\"}", "prompt"},
      {"/api/generate", R"({"prompt":"x","format":)" + schema + "}", "format"},
  };
}

// Where the router refuses a value later on, its error has the name that the client's body has.
TEST_F(BadHttp, ErrorsNameWhatTheClientSent) {
  for (const auto& [path, body, name] : LateRefusals()) {
    SCOPED_TRACE(absl::StrCat(path, " ", body.substr(0, 200)));
    const HttpAnswer answer = Ask(http(), PostOf(path, body));
    EXPECT_EQ(answer.status, 400) << answer.body;
    const bool openai = absl::StartsWith(path, "/v1/") && path != "/v1/messages";
    const nlohmann::json error = answer.Json()["error"];
    const std::string message = error.is_object() ? error["message"] : error;
    EXPECT_TRUE(absl::StartsWith(message, name + ": ")) << message;
    if (openai) {
      EXPECT_EQ(error["param"], name);
    }
    const std::string member = name.substr(0, name.find_first_of(".["));
    EXPECT_THAT(body, HasSubstr("\"" + member + "\"")) << "no name of the request";
  }
  ExpectServes();
}

TEST_F(BadHttp, PathsMethodsAndTypes) {
  ExpectError(Ask(http(), GetOf("/v2/completions")), {"", 404, "", "/v2/completions"});
  ExpectError(Ask(http(), GetOf("/v1/models/other")), {"", 404, "model", "other"});
  const HttpAnswer wrong = Ask(http(), GetOf("/v1/completions"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.Header("allow"), "POST");
  EXPECT_EQ(Ask(http(), PostOf("/metrics", "{}")).status, 405);
  EXPECT_EQ(Ask(http(),
                "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n"
                "content-length: 2\r\n\r\n{}")
                .status,
            415);
  const HttpAnswer packed =
      Ask(http(), PostOf("/v1/completions", "\x1f\x8b", "content-encoding: gzip\r\n"));
  ExpectError(packed, {"", 415, "content-encoding", "gzip"});
  EXPECT_EQ(
      Ask(http(), PostOf("/v1/completions/", R"({"prompt":"x"})", "content-encoding: identity\r\n"))
          .status,
      200);
  EXPECT_EQ(Ask(http(), GetOf("/v1/models/")).Json()["object"], "list");
  // As a client sends it to a proxy.
  EXPECT_EQ(Ask(http(), "GET http://a/v1/models HTTP/1.1\r\nhost: a\r\n\r\n").Json()["object"],
            "list");
  EXPECT_EQ(Ask(http(), PostOf("/detokenize", R"({"tokens":[1,99999]})")).status, 400);
  EXPECT_EQ(Ask(http(), PostOf("/tokenize", R"({"prompt":[1]})")).status, 400);
}

// A client's text is repeated up to kShownBytesMax, 128 bytes; of a longer one the length is told.
TEST_F(BadHttp, LongTextsAreNotRepeated) {
  const std::string most(128, 'x'), long_text(4096, 'x');
  const auto post = [](const std::string& path, const std::string& members) {
    return PostOf(path, "{" + members + "}");
  };
  const std::string hello = R"("messages":[{"role":"user","content":"x"}])";
  const std::vector<std::pair<std::function<std::string(const std::string&)>, int>> asks = {
      {[&](const auto& text) { return GetOf("/v1/models/" + text); }, 404},
      {[&](const auto& text) {
         return post("/v1/completions", R"("prompt":"x","model":")" + text + "\"");
       },
       404},
      {[&](const auto& text) {
         return post("/v1/chat/completions", hello + R"(,"model":")" + text + "\"");
       },
       404},
      {[&](const auto& text) {
         return post("/v1/messages", hello + R"(,"max_tokens":1,"model":")" + text + "\"");
       },
       404},
      {[&](const auto& text) { return post("/api/chat", hello + R"(,"model":")" + text + "\""); },
       404},
      {[&](const auto& text) { return GetOf("/v1/responses/" + text); }, 404},
      {[&](const auto& text) { return GetOf("/traces/" + text); }, 404},
      {[&](const auto& text) {
         return post("/v1/completions", R"("prompt":"x","strict":true,")" + text + "\":1");
       },
       400},
      {[&](const auto& text) {
         return post("/v1/completions", "\"" + text + "\":1,\"" + text + "\":1");
       },
       400},
      {[&](const auto& text) {
         return post("/v1/completions", R"("prompt":"x","logit_bias":{")" + text + "\":1}");
       },
       400},
      {[&](const auto& text) {
         return PostOf("/v1/completions", "{}", "content-encoding: " + text + "\r\n");
       },
       415},
  };
  for (const auto& [ask, status] : asks) {
    SCOPED_TRACE(ask("TEXT"));
    const HttpAnswer whole = Ask(http(), ask(most)), bounded = Ask(http(), ask(long_text));
    EXPECT_EQ(whole.status, status) << whole.body;
    EXPECT_THAT(whole.body, HasSubstr(most));
    EXPECT_EQ(bounded.status, status) << bounded.body;
    EXPECT_THAT(bounded.body, HasSubstr("a text of 4096 bytes"));
    EXPECT_LT(bounded.body.size(), 512u);
  }
  const HttpAnswer path = Ask(http(), GetOf("/" + long_text));
  EXPECT_EQ(path.status, 404);
  EXPECT_THAT(path.body, HasSubstr("no such path: a text of 4097 bytes"));
}

TEST_F(BadHttp, BrokenHttp) {
  const std::string big(40 << 10, 'h');
  const std::vector<std::pair<std::string, int>> table = {
      {"hello\r\n\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n\r\n", 19), 400},
      {"GET / HTTP/3.7\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nx: " + big + "\r\n\r\n", 431},
      {"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413},
      {"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\nGET /live HTTP/1.1\r\n\r\n",
       501},
  };
  for (const auto& [bytes, status] : table) {
    SCOPED_TRACE(bytes.substr(0, 100));
    HttpSocket socket(http());
    socket.Send(bytes);
    const HttpAnswer answer = socket.Read();
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_TRUE(answer.Json().contains("error"));
    EXPECT_EQ(answer.Header("connection"), "close");
    EXPECT_FALSE(socket.ReadSome());  // and it is closed
  }
  {  // Closed in the middle of a request: no answer, and no effect on others.
    HttpSocket socket(http());
    socket.Send("POST /v1/completions HTTP/1.1\r\ncontent-length: 50\r\n\r\n{\"pro");
    ::shutdown(socket.fd(), SHUT_WR);
    EXPECT_FALSE(socket.ReadSome());
  }
  ExpectServes();
}

}  // namespace
}  // namespace tandem::testing
