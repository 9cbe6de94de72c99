// The endpoints of Anthropic's Messages API. Contract: router/front_end/http/http_api.h.
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/anthropic_request.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/http/openai_error.h"

namespace tandem::router {

absl::StatusOr<ApiRequest> HttpApi::MessageOf(const Call& call, bool counts_only) const {
  ASSIGN_OR_RETURN(const Json body, ParseBody(call));
  return ReadAnthropic(body, deps_.session.assets,
                       {call.now, AsksForStrict(call, body), counts_only});
}

void HttpApi::Messages(Call& call) {
  absl::StatusOr<ApiRequest> api = MessageOf(call, /*counts_only=*/false);
  if (!api.ok()) return Reply(call, ErrorReply(api.status()));
  Generate(call, *std::move(api), "msg_");
}

// How many tokens the prompt of such a request has.
void HttpApi::CountTokens(Call& call) {
  const absl::StatusOr<ApiRequest> api = MessageOf(call, /*counts_only=*/true);
  const absl::Status served = api.ok() ? CheckServes(api->model) : api.status();
  if (!served.ok()) return Reply(call, ErrorReply(served));
  Reply(call, {.body = JsonText(Json{{"input_tokens", api->requests[0].tokens().ids_size()}})});
}

Json HttpApi::AnthropicModelJson() const {
  const std::string& name = deps_.session.assets.identity.served_name();
  return {{"type", "model"},
          {"id", name},
          {"display_name", name},
          {"created_at", absl::FormatTime(absl::RFC3339_sec, absl::FromUnixSeconds(started_s_),
                                          absl::UTCTimeZone())},
          {"lifecycle", "active"},
          {"max_input_tokens", deps_.context_tokens()}};
}

void HttpApi::AnthropicModels(Call& call) {
  const std::string& name = deps_.session.assets.identity.served_name();
  Reply(call, {.body = JsonText(Json{{"data", Json::array({AnthropicModelJson()})},
                                     {"has_more", false},
                                     {"first_id", name},
                                     {"last_id", name}})});
}

}  // namespace tandem::router
