#include "tests/bench/http_front_end/load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace tandem::bench {
namespace {

constexpr absl::string_view kEnd = "\r\n0\r\n\r\n";

std::string PostOf(const std::string& body, bool close, const std::string& api_key = "") {
  const std::string key =
      api_key.empty() ? "" : absl::StrCat("authorization: Bearer ", api_key, "\r\n");
  return absl::StrCat("POST /v1/completions HTTP/1.1\r\nhost: bench\r\n",
                      "content-type: application/json\r\n", close ? "connection: close\r\n" : "",
                      key, "content-length: ", body.size(), "\r\n\r\n", body);
}

absl::StatusOr<int> Connect(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) ||
      ::inet_pton(AF_INET, parts[0].c_str(), &to.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("address ", address, ": expected IPv4:port"));
  }
  to.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return absl::UnavailableError(absl::StrCat("connect to ", address, ": ", strerror(error)));
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

int CountOf(absl::string_view text, absl::string_view what) {
  int count = 0;
  for (size_t at = text.find(what); at != absl::string_view::npos; at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

// The whole reply of a router that takes no more.
bool IsRefusal(absl::string_view answer) {
  return (absl::StartsWith(answer, "HTTP/1.1 429 ") || absl::StartsWith(answer, "HTTP/1.1 503 ")) &&
         absl::EndsWith(answer, "}}");
}

class Load {
 public:
  explicit Load(const LoadOptions& options)
      : options_(options), random_(options.seed), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}
  ~Load() {
    for (const auto& one : connections_) {
      if (one->fd >= 0) ::close(one->fd);
    }
    ::close(epoll_);
  }

  absl::StatusOr<LoadReport> Run() {
    for (int i = 0; i < options_.connections; ++i) {
      connections_.push_back(std::make_unique<Connection>());
      idle_.push_back(connections_.back().get());
      if (!options_.fresh) RETURN_IF_ERROR(Open(*idle_.back()));
    }
    // Made before the clock starts.
    for (int64_t i = 0; i < options_.requests; ++i) {
      requests_.push_back(PostOf(options_.body(i), options_.fresh, options_.api_key));
    }
    const absl::Time begin = absl::Now();
    next_at_ = begin;
    while (report_.requests < options_.requests) {
      RETURN_IF_ERROR(SendDue());
      RETURN_IF_ERROR(ReceiveSome());
    }
    report_.took = absl::Now() - begin;
    std::sort(report_.first_token_ms.begin(), report_.first_token_ms.end());
    std::sort(report_.added_ms.begin(), report_.added_ms.end());
    return std::move(report_);
  }

 private:
  struct Connection {
    int fd = -1;
    int64_t number = 0;  // of its request
    absl::Time sent;
    bool token_seen = false;
    std::string answer;
  };

  absl::Status Open(Connection& connection) {
    ASSIGN_OR_RETURN(connection.fd, Connect(options_.address));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &connection;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.fd, &event);
    return absl::OkStatus();
  }

  absl::Status SendDue() {
    while (sent_ < options_.requests && !idle_.empty() &&
           (options_.rate == 0 || absl::Now() >= next_at_)) {
      Connection& connection = *idle_.front();
      idle_.pop_front();
      // Connecting is part of what a fresh connection's first token takes.
      connection.sent = absl::Now();
      connection.token_seen = false;
      connection.answer.clear();
      if (options_.fresh) RETURN_IF_ERROR(Open(connection));
      connection.number = sent_;
      const std::string& bytes = requests_[static_cast<size_t>(sent_++)];
      // The socket blocks: a request is smaller than what the kernel buffers.
      if (::send(connection.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(bytes.size())) {
        return absl::InternalError(absl::StrCat("send: ", strerror(errno)));
      }
      if (options_.rate > 0) {
        next_at_ += absl::Seconds(std::exponential_distribution<>(options_.rate)(random_));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReceiveSome() {
    std::array<epoll_event, 256> events;
    absl::Duration wait = absl::Seconds(1);
    if (options_.rate > 0 && sent_ < options_.requests && !idle_.empty()) {
      wait = std::clamp(next_at_ - absl::Now(), absl::ZeroDuration(), wait);
    }
    // Waiting by whole milliseconds would mean to spin on a core that the router wants.
    const timespec timeout = absl::ToTimespec(wait);
    const int count = ::epoll_pwait2(epoll_, events.data(), events.size(), &timeout, nullptr);
    for (int i = 0; i < count; ++i) {
      RETURN_IF_ERROR(Receive(*static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr)));
    }
    return absl::OkStatus();
  }

  absl::Status Receive(Connection& connection) {
    std::array<char, 65536> bytes;
    const ssize_t got = ::recv(connection.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return absl::OkStatus();
    if (got > 0) connection.answer.append(bytes.data(), static_cast<size_t>(got));
    if (!connection.token_seen && absl::StrContains(connection.answer, "\"text\":")) {
      connection.token_seen = true;
      const absl::Duration took = absl::Now() - connection.sent;
      report_.first_token_ms.push_back(absl::ToDoubleMilliseconds(took));
      report_.added_ms.push_back(
          absl::ToDoubleMilliseconds(took - options_.held(connection.number)));
    }
    if (options_.rate > 0 && IsRefusal(connection.answer)) {
      ++report_.refused;
      if (absl::StartsWith(connection.answer, "HTTP/1.1 503 ")) ++report_.shed;
      options_.held(connection.number);
      return Done(connection);
    }
    const bool whole = absl::EndsWith(connection.answer, kEnd);
    if (!whole && got > 0) return absl::OkStatus();
    // Its reason and [DONE]; the events of its text may have met on the way.
    const bool ended = absl::StrContains(connection.answer, "\"finish_reason\":\"length\"") &&
                       absl::StrContains(connection.answer, "data: [DONE]\n\n");
    if (!whole || !ended || !absl::StartsWith(connection.answer, "HTTP/1.1 200 ")) {
      return absl::InternalError(
          absl::StrCat("an answer is not whole: ", connection.answer.substr(0, 2000)));
    }
    report_.events += CountOf(connection.answer, "data: ");
    return Done(connection);
  }

  absl::Status Done(Connection& connection) {
    if (options_.fresh) {
      ::close(connection.fd);
      connection.fd = -1;
    }
    idle_.push_back(&connection);
    ++report_.requests;
    return absl::OkStatus();
  }

  const LoadOptions options_;
  std::mt19937_64 random_;
  const int epoll_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::deque<Connection*> idle_;
  std::vector<std::string> requests_;
  int64_t sent_ = 0;
  absl::Time next_at_;
  LoadReport report_;
};

}  // namespace

double Quantile(const std::vector<double>& ascending, double p) {
  if (ascending.empty()) return 0;
  const auto at = static_cast<size_t>(p * static_cast<double>(ascending.size()));
  return ascending[std::min(at, ascending.size() - 1)];
}

absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options) { return Load(options).Run(); }

absl::StatusOr<std::vector<int>> OpenStreams(const std::string& address,
                                             const std::function<std::string(int64_t)>& body,
                                             int count) {
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const int fd, Connect(address));
    sockets.push_back(fd);
    const std::string bytes = PostOf(body(i), false);
    if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size())) {
      return absl::InternalError(absl::StrCat("send: ", strerror(errno)));
    }
  }
  for (const int fd : sockets) {
    std::string answer;
    std::array<char, 4096> bytes;
    while (!absl::StrContains(answer, "\"text\":")) {
      const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
      if (got <= 0) return absl::InternalError(absl::StrCat("a stream was not begun: ", answer));
      answer.append(bytes.data(), static_cast<size_t>(got));
    }
  }
  return sockets;
}

}  // namespace tandem::bench
