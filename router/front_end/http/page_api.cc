// The endpoints behind the router's web page: its files, the cluster's status, traces of finished
// requests, and the description of the API. Contract: router/front_end/http/http_api.h.
#include <google/protobuf/util/json_util.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/version.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/http/openai_error.h"
#include "router/front_end/http/openapi.h"
#include "router/front_end/http/page_files.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kPageFolder = "/page/";
constexpr absl::string_view kTracesFolder = "/traces/";
constexpr size_t kTracesListed = 50;
// The page runs only its own files and talks only to the router that served it: nothing that an
// answer holds can make it load or send anything elsewhere.
constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpReply MessageReply(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  HttpReply reply;
  if (!google::protobuf::util::MessageToJsonString(message, &reply.body, options).ok()) {
    return ErrorReply(absl::InternalError("the message could not be written as JSON"));
  }
  reply.headers.emplace_back("cache-control", "no-store");
  return reply;
}

absl::string_view ContentTypeOf(absl::string_view file) {
  if (absl::EndsWith(file, ".html")) return "text/html; charset=utf-8";
  if (absl::EndsWith(file, ".css")) return "text/css; charset=utf-8";
  if (absl::EndsWith(file, ".js")) return "text/javascript; charset=utf-8";
  return "image/svg+xml";
}

HttpReply FileReply(absl::string_view name) {
  for (const PageFile& file : PageFiles()) {
    if (file.name != name) continue;
    HttpReply reply;
    reply.content_type = std::string(ContentTypeOf(name));
    reply.body = std::string(file.text);
    reply.headers = {{"content-security-policy", kPagePolicy},
                     {"x-content-type-options", "nosniff"},
                     {"referrer-policy", "no-referrer"},
                     {"cache-control", "no-cache"}};
    return reply;
  }
  return ErrorReply(404, absl::StrCat("no such file of the page: ", Shown(name)));
}

// How the tenant's own requests begin in the trace store; empty: all requests are its.
std::string OwnPrefix(const Tenant* tenant) {
  if (tenant == nullptr || tenant->limits().is_admin) return "";
  return tenant->ScopedId("");
}

}  // namespace

void HttpApi::Root(Call& call) {
  const bool wants_page = absl::StrContains(call.request.Header("accept"), "text/html");
  HttpReply reply = wants_page ? FileReply("index.html")
                               : HttpReply{.body = JsonText({{"version", std::string(kVersion)}})};
  reply.headers.emplace_back("vary", "accept");
  Reply(call, std::move(reply));
}

void HttpApi::PageFileNamed(Call& call) {
  Reply(call, FileReply(absl::StripPrefix(call.request.path, kPageFolder)));
}

void HttpApi::Docs(Call& call) { Reply(call, FileReply("docs.html")); }

void HttpApi::OpenApi(Call& call) {
  Reply(call, HttpReply{.body = call.port == Port::kAdmin ? admin_openapi_ : openapi_});
}

void HttpApi::ClusterStatus(Call& call) {
  ReplyWithStatus(call, [this](const v1::GetStatusResponse& status) {
    v1::GetStatusResponse copy = status;
    copy.mutable_router()->set_requests_refused(deps_.session.metrics.refused());
    return MessageReply(copy);
  });
}

void HttpApi::Traces(Call& call) {
  const std::string prefix = OwnPrefix(call.tenant.get());
  Json list = Json::array();
  for (const TraceSummary& trace : deps_.session.traces.Recent(prefix, kTracesListed)) {
    list.push_back({{"request_id", trace.request_id.substr(prefix.size())},
                    {"submitted_s", trace.submitted_s},
                    {"total_ms", trace.total_ms},
                    {"output_tokens", trace.output_tokens},
                    {"failed", trace.failed}});
  }
  HttpReply reply{.body = JsonText({{"traces", std::move(list)}})};
  reply.headers.emplace_back("cache-control", "no-store");
  Reply(call, std::move(reply));
}

void HttpApi::OneTrace(Call& call) {
  const std::string id(absl::StripPrefix(call.request.path, kTracesFolder));
  absl::StatusOr<v1::RequestTrace> trace =
      deps_.session.traces.Find(call.tenant == nullptr ? id : call.tenant->SoughtId(id));
  if (!trace.ok()) return Reply(call, ErrorReply(trace.status()));
  trace->set_request_id(id);
  Reply(call, MessageReply(*trace));
}

}  // namespace tandem::router
