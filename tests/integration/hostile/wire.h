// What attackers and those who watch over a process need of the machine: raw TCP connections, and
// which ports, descriptors and memory a process has.
// Thread safety: Wire by one thread; functions pure.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tandem::testing {

// Where a process listens: an IPv4 address in the network's order, and a port.
struct Port {
  in_addr_t address = 0;
  uint16_t port = 0;
};

// One TCP connection. Errors are the other side's business: an attacker goes on.
class Wire {
 public:
  explicit Wire(const Port& to) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = to.address;
    address.sin_port = htons(to.port);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  Wire(Wire&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  ~Wire() {
    if (fd_ >= 0) ::close(fd_);
  }

  bool connected() const { return connected_; }
  // As much as the other side takes at once.
  void Write(absl::string_view bytes) {
    static_cast<void>(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  void CloseWriting() { ::shutdown(fd_, SHUT_WR); }
  // The connection ends with a reset when this is destroyed.
  void ResetAtEnd() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  // Whether the other side ended it within `timeout`; what it said before is thrown away.
  bool AwaitEnd(absl::Duration timeout) {
    const absl::Time give_up = absl::Now() + timeout;
    char bytes[4096];
    while (absl::Now() < give_up) {
      pollfd polled = {.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&polled, 1, 100) <= 0) continue;
      if (::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) return true;
    }
    return false;
  }

 private:
  int fd_;
  bool connected_ = false;
};

// Inodes of the sockets that the process has open.
inline std::set<std::string> SocketInodes(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    absl::string_view inode = target;
    if (absl::ConsumePrefix(&inode, "socket:[") && absl::ConsumeSuffix(&inode, "]")) {
      inodes.insert(std::string(inode));
    }
  }
  return inodes;
}

// All TCP ports that the process listens on.
inline std::vector<Port> ListeningPorts(pid_t pid) {
  const std::set<std::string> own = SocketInodes(pid);
  std::vector<Port> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      constexpr absl::string_view kListens = "0A";
      if (words.size() < 10 || words[3] != kListens || own.count(words[9]) == 0) continue;
      const std::vector<std::string> at = absl::StrSplit(words[1], ':');
      uint32_t address = 0, port = 0;
      // An IPv6 socket here stands for the IPv4 address in its last word.
      const std::string last_word = at[0].substr(at[0].size() - 8);
      if (!absl::SimpleHexAtoi(last_word, &address) || !absl::SimpleHexAtoi(at[1], &port)) continue;
      if (address == 0) address = htonl(INADDR_LOOPBACK);
      ports.push_back({address, static_cast<uint16_t>(port)});
    }
  }
  return ports;
}

inline int64_t OpenFiles(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator files(absl::StrCat("/proc/", pid, "/fd"), error);
  return error ? -1 : std::distance(begin(files), end(files));
}

inline int64_t ResidentBytes(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/statm"));
  int64_t total_pages = 0, resident_pages = -1;
  in >> total_pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace tandem::testing
