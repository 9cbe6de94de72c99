#include "router/front_end/http/stream_resumption.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kResumable = "x-tandem-resumable";
constexpr absl::string_view kLastEventId = "last-event-id";
constexpr size_t kAnswerIdBytesMax = 128;
// More than any stream has, of bytes, events and tokens. Counts go on from those of an id, and must
// not overflow.
constexpr int64_t kCountMax = int64_t{1} << 48;

// What an event's id says: ANSWER/SEED/REQUEST[.CONTEXT.PROMPT]/PLACE[,PLACE…], a place for each
// answer of the request. A place is BYTES.EVENTS[.TOKENS.NUMBERED]. Seed and request are
// hexadecimal, all counts decimal.
struct EventId {
  std::string answer;
  uint64_t seed = 0;
  uint64_t request = 0;           // RequestDigest
  std::optional<FleetRoom> room;  // that the request was fitted to
  std::vector<StreamPosition> at;
};

bool IsAnswerId(absl::string_view id) {
  return !id.empty() && id.size() <= kAnswerIdBytesMax &&
         std::all_of(id.begin(), id.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

bool ParseCount(absl::string_view text, int64_t& count) {
  return absl::SimpleAtoi(text, &count) && count >= 0 && count <= kCountMax;
}

bool ParsePlace(absl::string_view text, StreamPosition& at) {
  // Not more than a place can have, however long the header is.
  if (std::count(text.begin(), text.end(), '.') > 3) return false;
  const std::vector<absl::string_view> counts = absl::StrSplit(text, '.');
  if (counts.size() != 2 && counts.size() != 4) return false;
  if (!ParseCount(counts[0], at.text_bytes) || !ParseCount(counts[1], at.events)) return false;
  return counts.size() == 2 ||
         (ParseCount(counts[2], at.tokens) && ParseCount(counts[3], at.numbered));
}

bool ParsePlaces(absl::string_view text, std::vector<StreamPosition>& at) {
  if (std::count(text.begin(), text.end(), ',') >= kResumableAnswersMax) return false;
  for (const absl::string_view place : absl::StrSplit(text, ',')) {
    if (!ParsePlace(place, at.emplace_back())) return false;
  }
  return true;
}

bool ParseRequest(absl::string_view text, EventId& id) {
  if (std::count(text.begin(), text.end(), '.') > 2) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  if (!absl::SimpleHexAtoi(parts[0], &id.request)) return false;
  if (parts.size() == 1) return true;
  id.room.emplace();
  return parts.size() == 3 && ParseCount(parts[1], id.room->context) &&
         ParseCount(parts[2], id.room->prompt);
}

bool ParseEventId(absl::string_view text, EventId& id) {
  // The answer's id is the client's, and may contain slashes.
  std::vector<absl::string_view> fields = absl::StrSplit(text, '/');
  if (fields.size() < 4) return false;
  const absl::string_view request = fields[fields.size() - 2];
  const absl::string_view seed = fields[fields.size() - 3];
  id.answer = std::string(text.substr(0, static_cast<size_t>(seed.data() - text.data()) - 1));
  return IsAnswerId(id.answer) && absl::SimpleHexAtoi(seed, &id.seed) &&
         ParseRequest(request, id) && ParsePlaces(fields.back(), id.at);
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
  // What an event says of tokens, which a place counts.
  if (api.logprobs.has_value() || api.return_token_ids) {
    absl::StrAppend(&bytes, api.logprobs.value_or(-1), "/", api.return_token_ids, "/",
                    api.tokens_as_ids, "/", api.echo, "/");
  }
  {
    google::protobuf::io::StringOutputStream raw(&bytes);
    google::protobuf::io::CodedOutputStream out(&raw);
    out.SetSerializationDeterministic(true);
    request.SerializeToCodedStream(&out);
  }
  return XXH64(bytes.data(), bytes.size(), 0);
}

// Why another run could not continue this stream; empty if one could.
std::string WhyNot(const ApiRequest& api) {
  if (!api.stream) return "given without stream, expected a stream";
  if (api.requests.size() > 1) return "given with several prompts, expected one";
  if (api.n > kResumableAnswersMax) {
    return absl::StrCat("given with ", api.n, " answers, expected at most ", kResumableAnswersMax);
  }
  // Which tokens are a call's, and have no log-probability in the stream, depends on how they came.
  if (api.kind == ApiKind::kResponse && api.logprobs.has_value() &&
      api.tool_mode != ToolMode::kNone) {
    return "given with log-probabilities and tools, expected one of them";
  }
  return "";
}

absl::Status Continue(const EventId& last, uint64_t digest, std::string& id, ApiRequest& api) {
  v1::GenerateRequest& request = api.requests[0];
  const bool other_seed = request.sampling().has_seed() && request.sampling().seed() != last.seed;
  const bool other_id = !request.request_id().empty() && request.request_id() != last.answer;
  const bool other_answers = last.at.size() != static_cast<size_t>(api.n);
  if (last.request != digest || other_seed || other_id || other_answers) {
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

EventCursor::EventCursor(std::string id_begin, size_t answers, std::vector<StreamPosition> received)
    : id_begin_(std::move(id_begin)), places_(id_begin_.empty() ? 1 : answers) {
  TANDEM_CHECK(received.empty() || received.size() == places_.size(), "places of ", received.size(),
               " answers, expected ", places_.size());
  for (size_t i = 0; i < received.size(); ++i) {
    places_[i].received = received[i];
    places_[i].at.numbered = received[i].numbered;
  }
}

bool EventCursor::NewEvent(size_t answer) {
  Place& place = PlaceOf(answer);
  return ++place.at.events > place.received.events;
}

absl::string_view EventCursor::NewText(absl::string_view text, size_t answer) {
  Place& place = PlaceOf(answer);
  const int64_t had = place.received.text_bytes - place.at.text_bytes;
  place.at.text_bytes += static_cast<int64_t>(text.size());
  if (had <= 0) return text;
  return text.substr(std::min(static_cast<size_t>(had), text.size()));
}

size_t EventCursor::ReceivedTokens(size_t tokens, size_t answer) {
  Place& place = PlaceOf(answer);
  const int64_t had = std::max<int64_t>(place.received.tokens - place.at.tokens, 0);
  place.at.tokens += static_cast<int64_t>(tokens);
  return std::min(static_cast<size_t>(had), tokens);
}

std::string EventCursor::Id() const {
  if (id_begin_.empty()) return "";
  std::string id = id_begin_;
  for (const auto& [received, at] : places_) {
    if (&at != &places_[0].at) id += ',';
    // What the client has stays received, even where this run has not come to it yet.
    absl::StrAppend(&id, std::max(at.text_bytes, received.text_bytes), ".",
                    std::max(at.events, received.events));
    const int64_t tokens = std::max(at.tokens, received.tokens);
    if (tokens + at.numbered > 0) absl::StrAppend(&id, ".", tokens, ".", at.numbered);
  }
  return id;
}

void EventCursor::AppendId(std::string& events) const {
  if (!id_begin_.empty()) absl::StrAppend(&events, "id: ", Id(), "\n");
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
  const std::string why_not = WhyNot(api);
  if (!why_not.empty()) return absl::UnimplementedError(absl::StrCat(header, ": ", why_not));
  const uint64_t digest = RequestDigest(api, fingerprint);
  v1::SamplingParams& sampling = *api.requests[0].mutable_sampling();
  if (!last.empty()) {
    EventId event;
    if (!ParseEventId(last, event)) {
      return absl::InvalidArgumentError(absl::StrCat(
          header, ": ", ShownInQuotes(last), ", expected the id of an event of the stream"));
    }
    RETURN_IF_ERROR(Continue(event, digest, id, api));
  } else if (!IsAnswerId(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: expected at most ", kAnswerIdBytesMax,
                     " visible ASCII characters in a stream that can be continued"));
  } else if (!sampling.has_seed()) {
    sampling.set_seed(random.Next());
  }
  api.event_id_begin = absl::StrCat(id, "/", absl::Hex(sampling.seed()), "/", absl::Hex(digest));
  if (api.fitted_to.has_value()) {
    absl::StrAppend(&api.event_id_begin, ".", api.fitted_to->context, ".", api.fitted_to->prompt);
  }
  api.event_id_begin += "/";
  return absl::OkStatus();
}

std::optional<FleetRoom> RoomOfLastEvent(const HttpRequest& head) {
  EventId event;
  return ParseEventId(head.Header(kLastEventId), event) ? event.room : std::nullopt;
}

}  // namespace tandem::router
