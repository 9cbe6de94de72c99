// The endpoints of Anthropic's Messages API. Contract: router/front_end/http/http_api.h.
#include <utility>

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
  if (!api.ok()) return Reply(call, ErrorReply(api.status()));
  Reply(call, {.body = JsonText(Json{{"input_tokens", api->requests[0].tokens().ids_size()}})});
}

}  // namespace tandem::router
