// A stream of events that another request can continue after its connection, or its router, was
// lost.
//
// A router remembers nothing of a stream. The client brings what is needed: the request's body once
// more, and in Last-Event-ID the id of the last event that it received. An id names the answer, its
// seed, the request, what that was fitted to (fleet_room.h), and a place in the stream. Since a
// stream is a function of its request, any router of the fleet generates it again and sends what
// lies behind that place (docs/adr/0042-streams-resume-from-an-event-id.md).
//
// A place is counted in bytes of text, in events without text, and in the tokens that events
// describe (log-probabilities, token ids). Each of these comes in the same order in every run,
// while how much text and how many tokens one event holds depends on how tokens arrived. Where a
// request has several answers, each has a place of its own, because their events interleave as
// their tokens arrive (docs/adr/0077-each-answer-has-its-place.md).
// Thread safety: pure functions and values; an EventCursor belongs to one answer's format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/front_end/http/fleet_room.h"

namespace tandem {
class Random;
}

namespace tandem::router {

struct ApiRequest;
struct HttpRequest;

// A stream with more answers cannot be continued: each event's id holds the place of each.
inline constexpr int32_t kResumableAnswersMax = 16;

struct StreamPosition {
  int64_t text_bytes = 0;
  int64_t events = 0;    // without text
  int64_t tokens = 0;    // whose log-probability or id was sent
  int64_t numbered = 0;  // events of any kind, where the API numbers them
};

// Follows a stream, leaves out what its client has, and writes the ids of events. `answer` is the
// index of the answer that an event belongs to.
class EventCursor {
 public:
  // `id_begin`: what every id begins with; empty: events have no ids, and all answers are counted
  // as one. `answers`: how many there are. `received`: what the client has of each; empty: nothing.
  // REQUIRES: `received` is empty or has `answers` places.
  EventCursor(std::string id_begin, size_t answers, std::vector<StreamPosition> received);

  // The part of the next event's text that the client does not have.
  absl::string_view NewText(absl::string_view text, size_t answer = 0);
  // Counts the next event, which has no text. Whether the client does not have it.
  bool NewEvent(size_t answer = 0);
  // Counts the next `tokens` tokens. Returns how many of them, the first ones, the client has.
  size_t ReceivedTokens(size_t tokens, size_t answer = 0);
  // The number of the next event that is sent, for an API that numbers its events from 0 and has
  // one answer. A stream that is continued goes on with the number after the client's last one.
  int64_t NextNumber() { return places_[0].at.numbered++; }
  // The id of the event that was counted last: what the client has once it has received that event.
  // Empty where events have no ids.
  std::string Id() const;
  // Appends Id() as a line of an event stream.
  void AppendId(std::string& events) const;

 private:
  struct Place {
    StreamPosition received;
    StreamPosition at;
  };

  Place& PlaceOf(size_t answer) { return places_[id_begin_.empty() ? 0 : answer]; }

  const std::string id_begin_;
  // Bound: kResumableAnswersMax, fixed at construction.
  std::vector<Place> places_;
};

// Reads the headers x-tandem-resumable and Last-Event-ID. If neither asks for it, nothing changes.
// Otherwise the events of `api` get ids, which needs a seed: one is drawn if the request has none.
// With Last-Event-ID, `id` becomes the id of the answer to continue.
//   id: the answer's, given by the client or drawn.
//   fingerprint: of the model.
// Errors, naming the header: kInvalidArgument for an id that is none, or that names an answer to
// another request; kUnimplemented for a request whose stream cannot be continued.
absl::Status MakeResumable(const HttpRequest& head, const std::string& fingerprint, Random& random,
                           std::string& id, ApiRequest& api);

// What the request of a stream that is to be continued was fitted to, if it was: the fleet may hold
// more or less by now. nullopt also for an id that MakeResumable refuses.
std::optional<FleetRoom> RoomOfLastEvent(const HttpRequest& head);

// Whether the client has the beginning of the answer already.
bool NamesLastEvent(const HttpRequest& head);

}  // namespace tandem::router
