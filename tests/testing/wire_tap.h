// A TCP relay that records every byte it passes on: what somebody on the network sees.
// Thread safety: any thread. Owner: the test.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"

namespace tandem::testing {

class WireTap {
 public:
  // `target`: 127.0.0.1:port.
  explicit WireTap(const std::string& target) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    TANDEM_CHECK(absl::SimpleAtoi(target.substr(target.rfind(':') + 1), &target_port_));
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    TANDEM_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                 ::listen(listener_, 16) == 0 &&
                 ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] { Run(); });
  }
  ~WireTap() {
    stop_ = true;
    thread_.join();
    for (const auto& [from, to] : pairs_) ::close(from);
    ::close(listener_);
  }

  const std::string& address() const { return address_; }
  bool Saw(absl::string_view text) const {
    absl::MutexLock lock(&mutex_);
    return absl::StrContains(seen_, text);
  }
  size_t bytes() const {
    absl::MutexLock lock(&mutex_);
    return seen_.size();
  }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void Run() {
    while (!stop_) {
      std::vector<pollfd> waiting = {{listener_, POLLIN, 0}};
      for (const auto& [from, to] : pairs_) waiting.push_back({from, POLLIN, 0});
      if (::poll(waiting.data(), waiting.size(), 50) <= 0) continue;
      std::vector<int> ended;
      for (size_t i = 1; i < waiting.size(); ++i) {
        if (waiting[i].revents != 0 && !Pass(pairs_[i - 1].first, pairs_[i - 1].second))
          ended.push_back(pairs_[i - 1].first);
      }
      for (const int fd : ended) Drop(fd);
      if (waiting[0].revents != 0) Accept();
    }
  }
  void Accept() {
    const int near = ::accept(listener_, nullptr, nullptr);
    const int far = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(target_port_);
    if (near < 0 ||
        ::connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(near);
      ::close(far);
      return;
    }
    pairs_.emplace_back(near, far);
    pairs_.emplace_back(far, near);
  }
  bool Pass(int from, int to) {
    char buffer[65536];
    const ssize_t got = ::recv(from, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    {
      absl::MutexLock lock(&mutex_);
      seen_.append(buffer, static_cast<size_t>(got));
    }
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t more = ::send(to, buffer + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (more <= 0) return false;
      sent += more;
    }
    return true;
  }
  // Both directions of the connection that `fd` belongs to.
  void Drop(int fd) {
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (pairs_[i].first != fd) continue;
      const int other = pairs_[i].second;
      pairs_.erase(pairs_.begin() + static_cast<ptrdiff_t>(i));
      for (size_t k = 0; k < pairs_.size(); ++k) {
        if (pairs_[k].first == other) {
          pairs_.erase(pairs_.begin() + static_cast<ptrdiff_t>(k));
          break;
        }
      }
      ::close(fd);
      ::close(other);
      return;
    }
  }

  const int listener_;
  int target_port_ = 0;
  std::string address_;
  std::vector<std::pair<int, int>> pairs_;  // both directions; by the thread
  mutable absl::Mutex mutex_;
  std::string seen_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tandem::testing
