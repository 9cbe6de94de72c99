#include "router/front_end/http/stream_resumption.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kResumable = "x-tandem-resumable";
constexpr absl::string_view kLastEventId = "last-event-id";
constexpr size_t kAnswerIdBytesMax = 128;

// What an event's id says: ANSWER/SEED/REQUEST/BYTES.EVENTS, seed and request in hexadecimal.
struct EventId {
  std::string answer;
  uint64_t seed = 0;
  uint64_t request = 0;  // RequestDigest
  StreamPosition at;
};

bool IsAnswerId(absl::string_view id) {
  return !id.empty() && id.size() <= kAnswerIdBytesMax &&
         std::all_of(id.begin(), id.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

bool ParseCount(absl::string_view text, int64_t& count) {
  return absl::SimpleAtoi(text, &count) && count >= 0;
}

bool ParseEventId(absl::string_view text, EventId& id) {
  // The answer's id is the client's, and may contain slashes.
  std::vector<absl::string_view> fields = absl::StrSplit(text, '/');
  if (fields.size() < 4) return false;
  const std::vector<absl::string_view> place = absl::StrSplit(fields.back(), '.');
  const absl::string_view request = fields[fields.size() - 2];
  const absl::string_view seed = fields[fields.size() - 3];
  id.answer = std::string(text.substr(0, static_cast<size_t>(seed.data() - text.data()) - 1));
  return IsAnswerId(id.answer) && absl::SimpleHexAtoi(seed, &id.seed) &&
         absl::SimpleHexAtoi(request, &id.request) && place.size() == 2 &&
         ParseCount(place[0], id.at.text_bytes) && ParseCount(place[1], id.at.events);
}

// A number of all that decides the stream, besides the seed. It finds mistakes; it is no secret.
uint64_t RequestDigest(const ApiRequest& api, const std::string& fingerprint) {
  v1::GenerateRequest request = api.requests[0];
  request.clear_request_id();
  request.clear_priority();
  request.clear_deadline_s();
  request.mutable_sampling()->clear_seed();
  std::string bytes = absl::StrCat(fingerprint, "/", static_cast<int>(api.kind), "/",
                                   static_cast<int>(api.tool_mode), "/", api.parallel_calls, "/",
                                   api.tool_name, "/");
  {
    google::protobuf::io::StringOutputStream raw(&bytes);
    google::protobuf::io::CodedOutputStream out(&raw);
    out.SetSerializationDeterministic(true);
    request.SerializeToCodedStream(&out);
  }
  return XXH64(bytes.data(), bytes.size(), 0);
}

// Why another run could not continue this stream; empty if one could.
absl::string_view WhyNot(const ApiRequest& api) {
  const bool events = api.kind == ApiKind::kCompletion || api.kind == ApiKind::kChat ||
                      api.kind == ApiKind::kMessage;
  if (!events || !api.stream) {
    return "expected a stream of /v1/completions, /v1/chat/completions or /v1/messages";
  }
  const v1::GenerateRequest& request = api.requests[0];
  if (api.requests.size() > 1 || api.n > 1 || request.best_of() > 1 || request.has_beam_search()) {
    return "given with several answers, expected one";
  }
  if (api.logprobs.has_value() || api.return_token_ids) {
    return "given with logprobs or return_token_ids, expected a stream of text";
  }
  return "";
}

absl::Status Continue(const EventId& last, uint64_t digest, std::string& id, ApiRequest& api) {
  v1::GenerateRequest& request = api.requests[0];
  const bool other_seed = request.sampling().has_seed() && request.sampling().seed() != last.seed;
  const bool other_id = !request.request_id().empty() && request.request_id() != last.answer;
  if (last.request != digest || other_seed || other_id) {
    return absl::InvalidArgumentError(
        "last-event-id: names an answer to another request, expected the body that was sent first");
  }
  id = last.answer;
  request.mutable_sampling()->set_seed(last.seed);
  api.received = last.at;
  api.resumes = true;
  return absl::OkStatus();
}

}  // namespace

absl::string_view EventCursor::NewText(absl::string_view text) {
  const int64_t had = received_.text_bytes - at_.text_bytes;
  at_.text_bytes += static_cast<int64_t>(text.size());
  if (had <= 0) return text;
  return text.substr(std::min(static_cast<size_t>(had), text.size()));
}

void EventCursor::AppendId(std::string& events) const {
  if (id_begin_.empty()) return;
  // What the client has stays received, even where this run has not come to it yet.
  absl::StrAppend(&events, "id: ", id_begin_, std::max(at_.text_bytes, received_.text_bytes), ".",
                  std::max(at_.events, received_.events), "\n");
}

bool NamesLastEvent(const HttpRequest& head) { return !head.Header(kLastEventId).empty(); }

absl::Status MakeResumable(const HttpRequest& head, const std::string& fingerprint, Random& random,
                           std::string& id, ApiRequest& api) {
  const absl::string_view last = head.Header(kLastEventId);
  const absl::string_view wish = head.Header(kResumable);
  if (last.empty() && wish != "1" && !absl::EqualsIgnoreCase(wish, "true")) {
    return absl::OkStatus();
  }
  const absl::string_view header = last.empty() ? kResumable : kLastEventId;
  const absl::string_view why_not = WhyNot(api);
  if (!why_not.empty()) return absl::UnimplementedError(absl::StrCat(header, ": ", why_not));
  const uint64_t digest = RequestDigest(api, fingerprint);
  v1::SamplingParams& sampling = *api.requests[0].mutable_sampling();
  if (!last.empty()) {
    EventId event;
    if (!ParseEventId(last, event)) {
      return absl::InvalidArgumentError(
          absl::StrCat(header, ": \"", last, "\", expected the id of an event of the stream"));
    }
    RETURN_IF_ERROR(Continue(event, digest, id, api));
  } else if (!IsAnswerId(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: expected at most ", kAnswerIdBytesMax,
                     " visible ASCII characters in a stream that can be continued"));
  } else if (!sampling.has_seed()) {
    sampling.set_seed(random.Next());
  }
  api.event_id_begin =
      absl::StrCat(id, "/", absl::Hex(sampling.seed()), "/", absl::Hex(digest), "/");
  return absl::OkStatus();
}

}  // namespace tandem::router
