#include "cli/bench/call_bench.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/transfer/call_channel.h"
#include "common/transfer/shared_ring_link.h"

namespace tandem::cli {
namespace {

constexpr size_t kMessageBytes = 64;
constexpr int kCalls = 4000;
constexpr absl::Duration kCallMax = absl::Seconds(5);

using Message = std::array<std::byte, kMessageBytes>;

// Answers every request with as many bytes, and notes the last response.
class Echo : public transfer::CallHandler {
 public:
  explicit Echo(transfer::CallChannel& channel) : channel_(channel) {}
  void OnRequest(transfer::CallPeer peer, transfer::CallId call,
                 absl::Span<const std::byte> bytes) override {
    // A caller that ended needs no answer.
    channel_.Respond(peer, call, {bytes}).IgnoreError();
  }
  void OnResponse(transfer::CallId, absl::StatusOr<absl::Span<const std::byte>> bytes) override {
    response = bytes.status();
  }
  void OnPeerLost(transfer::CallPeer, const absl::Status& why) override { lost = why; }

  std::optional<absl::Status> response;
  absl::Status lost;

 private:
  transfer::CallChannel& channel_;
};

struct End {
  std::unique_ptr<transfer::CallChannel> channel;
  transfer::CallPeer peer{};
};

absl::StatusOr<End> OpenEnd(transfer::OwnedDescriptor socket,
                            const transfer::OwnedDescriptor& memory,
                            transfer::SharedRingLink::Side side, absl::Duration spin) {
  ASSIGN_OR_RETURN(auto link,
                   transfer::SharedRingLink::Create(std::move(socket), memory, side, {}));
  End end;
  ASSIGN_OR_RETURN(end.channel, transfer::CallChannel::Create(RealClock(), {.spin = spin}));
  ASSIGN_OR_RETURN(end.peer, end.channel->AddPeer(std::move(link)));
  return end;
}

void ServeCalls(transfer::OwnedDescriptor socket, const transfer::OwnedDescriptor& memory,
                absl::Duration spin) {
  auto end = OpenEnd(std::move(socket), memory, transfer::SharedRingLink::Side::kSecond, spin);
  if (!end.ok()) return;
  Echo echo(*end->channel);
  while (echo.lost.ok()) end->channel->Wait(echo, RealClock().Now() + kCallMax);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CallBench>> CallBench::Fork(absl::Duration spin) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  transfer::OwnedDescriptor first(ends[0]), second(ends[1]);
  ASSIGN_OR_RETURN(transfer::OwnedDescriptor memory, transfer::NewRingMemory({}));
  ASSIGN_OR_RETURN(auto child, BenchChild::Fork([&](int) {
                     // Only the measuring process holds the other end, so its end is noticed.
                     first = transfer::OwnedDescriptor();
                     ServeCalls(std::move(second), memory, spin);
                   }));
  return std::unique_ptr<CallBench>(
      new CallBench(spin, std::move(first), std::move(memory), std::move(child)));
}

absl::StatusOr<absl::Duration> CallBench::RoundTrip() {
  ASSIGN_OR_RETURN(
      End end, OpenEnd(std::move(socket_), memory_, transfer::SharedRingLink::Side::kFirst, spin_));
  RETURN_IF_ERROR(child_->Start());
  Echo echo(*end.channel);
  const Message message = {};
  const std::array<absl::Span<const std::byte>, 1> pieces = {message};
  std::vector<absl::Duration> times;
  for (int i = 0; i < kCalls; ++i) {
    echo.response.reset();
    const absl::Time began = RealClock().Now();
    RETURN_IF_ERROR(end.channel->Call(end.peer, pieces, began + kCallMax).status());
    while (!echo.response.has_value() && echo.lost.ok()) {
      end.channel->Wait(echo, began + kCallMax);
    }
    times.push_back(RealClock().Now() - began);
    RETURN_IF_ERROR(echo.lost);
    RETURN_IF_ERROR(*echo.response);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace tandem::cli
