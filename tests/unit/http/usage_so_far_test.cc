// Goal: each event of a stream can tell the tokens so far of all choices that the client gets.
#include <gtest/gtest.h>

#include "absl/strings/string_view.h"
#include "router/front_end/http/completion_format.h"
#include "router/front_end/http/completion_request.h"
#include "router/front_end/json_body.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {
namespace {

TEST(UsageSoFar, CountsTheTokensOfTheChoicesOfAClient) {
  const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const Json body = ParseJsonBody(R"({"prompt":["u","v"],"n":2,"best_of":2,"stream":true,
      "stream_options":{"include_usage":true,"continuous_usage_stats":true}})")
                        .value();
  ApiRequest api = ReadCompletion(body, false).value();
  api.prompts = api.requests.size();
  api.requests.clear();
  const auto format = NewCompletionFormat(api, {"id", 0, "hash", "f"}, *assets->tokenizer);
  const auto told = [&](size_t prompt, int32_t sequence, int tokens) {
    v1::GenerateResponse part;
    v1::Delta& delta = *part.mutable_delta();
    delta.set_sequence_index(sequence);
    delta.set_text("x");
    for (int i = 0; i < tokens; ++i) delta.add_tokens()->set_token_id('x');
    std::string events;
    format->Add(prompt, part, &events);
    if (events.empty()) return int64_t{-1};
    const absl::string_view event = events;
    const Json read = ParseJsonBody(event.substr(event.find('{'))).value();
    return read["usage"]["completion_tokens"].get<int64_t>();
  };
  EXPECT_EQ(told(0, 0, 2), 2);
  EXPECT_EQ(told(1, 1, 3), 5);
  EXPECT_EQ(told(0, 2, 7), -1) << "a candidate that the client does not get";
  EXPECT_EQ(told(0, 1, 1), 6);
  EXPECT_EQ(told(1, 1, 1), 7);
}

}  // namespace
}  // namespace tandem::router
