// HTTP as bytes on a socket, for tests that send what no client library would send.
//   HttpSocket socket(cluster->http_address());
//   socket.Send(PostOf("/v1/completions", "{}"));
//   HttpAnswer answer = socket.Read();
// Thread safety: none.
#pragma once

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace tandem::testing {

struct HttpAnswer {
  int status = 0;  // 0: none came
  std::string head;
  std::string body;  // without chunk framing
  bool complete = false;

  nlohmann::json Json() const { return nlohmann::json::parse(body, nullptr, false); }
  std::string Header(const std::string& name) const {
    for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
      if (absl::StartsWithIgnoreCase(line, name + ": ")) {
        return std::string(line.substr(name.size() + 2));
      }
    }
    return "";
  }
  // The data of each event of a stream.
  std::vector<std::string> Events() const {
    std::vector<std::string> events;
    for (const absl::string_view block : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
      if (absl::StartsWith(block, "data: ")) events.emplace_back(block.substr(6));
    }
    return events;
  }
};

inline std::string PostOf(const std::string& path, const std::string& body,
                          const std::string& headers = "") {
  return absl::StrCat("POST ", path,
                      " HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n", headers,
                      "content-length: ", body.size(), "\r\n\r\n", body);
}
inline std::string GetOf(const std::string& path, const std::string& headers = "") {
  return absl::StrCat("GET ", path, " HTTP/1.1\r\nhost: test\r\n", headers, "\r\n");
}

class HttpSocket {
 public:
  // `address`: host:port of this machine.
  explicit HttpSocket(const std::string& address) {
    const std::vector<std::string> parts = absl::StrSplit(address, ':');
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    TANDEM_CHECK(::getaddrinfo(parts[0].c_str(), parts[1].c_str(), &hints, &found) == 0);
    fd_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TANDEM_CHECK(fd_ >= 0 && ::connect(fd_, found->ai_addr, found->ai_addrlen) == 0);
    ::freeaddrinfo(found);
  }
  virtual ~HttpSocket() { Close(); }
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // False when the peer has closed.
  bool Send(const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t sent = SendBytes(bytes.data() + done, bytes.size() - done);
      if (sent <= 0) return false;
      done += static_cast<size_t>(sent);
    }
    return true;
  }
  // More bytes into buffer(); false at the end of the stream or after `timeout_ms`.
  bool ReadSome(int timeout_ms = 20000) {
    if (!AwaitBytes(timeout_ms)) return false;
    char bytes[65536];
    const ssize_t got = ReceiveBytes(bytes, sizeof bytes);
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(got));
    return true;
  }
  const std::string& buffer() const { return buffer_; }
  // The next answer; requests may have been pipelined.
  HttpAnswer Read() {
    HttpAnswer answer;
    size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!ReadSome()) return answer;
    }
    answer.head = buffer_.substr(0, end);
    buffer_.erase(0, end + 4);
    answer.status = std::atoi(answer.head.substr(9, 3).c_str());
    if (answer.status == 100) return answer;
    if (answer.Header("transfer-encoding") == "chunked") {
      answer.complete = ReadChunks(answer.body);
      return answer;
    }
    size_t length = 0;
    if (!absl::SimpleAtoi(answer.Header("content-length"), &length)) return answer;
    while (buffer_.size() < length) {
      if (!ReadSome()) return answer;
    }
    answer.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    answer.complete = true;
    return answer;
  }

 protected:
  // Sends and receives the bytes as they are. HttpsSocket overrides these for TLS.
  virtual ssize_t SendBytes(const char* bytes, size_t size) {
    return ::send(fd_, bytes, size, MSG_NOSIGNAL);
  }
  virtual ssize_t ReceiveBytes(char* bytes, size_t size) { return ::recv(fd_, bytes, size, 0); }
  virtual bool AwaitBytes(int timeout_ms) {
    pollfd poll_fd = {.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&poll_fd, 1, timeout_ms) > 0;
  }

 private:
  bool ReadChunks(std::string& body) {
    while (true) {
      size_t line = 0;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!ReadSome()) return false;
      }
      const size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!ReadSome()) return false;
      }
      body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) return true;
    }
  }

  int fd_ = -1;
  std::string buffer_;
};

// One request on a connection of its own.
inline HttpAnswer Ask(const std::string& address, const std::string& request) {
  HttpSocket socket(address);
  socket.Send(request);
  return socket.Read();
}

}  // namespace tandem::testing
