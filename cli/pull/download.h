// Fetches files over HTTP, so that a connection that breaks costs only what had not arrived.
//
// A file arrives under its name with ".part" behind it, and goes on where the last try ended (also
// of an earlier process) if the server still has the same file: one with the same validators (ETag,
// Last-Modified, size). Without a validator or a hash to tell, it begins anew. The caller gives it
// its own name by Install.
//
// Thread safety: none; a Downloader belongs to one thread. Owner: the pull command.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/pull/server_reply.h"

namespace tandem::cli {

// A try failed, and another follows.
struct Retry {
  absl::Status status;  // why it failed
  absl::Duration wait;  // until the next try
  int next = 0;         // which of `attempts` in a row that is
  int attempts = 0;
};

struct DownloadOptions {
  // Sent to `token_host` only ("host" or "host:port" of the first URL), and to no host that it
  // redirects to. Empty: none.
  std::string token, token_host;
  int attempts = 6;                                     // that bring nothing new, one after another
  absl::Duration first_wait = absl::Milliseconds(500);  // doubles with each of them
  absl::Duration wait_max = absl::Seconds(60);          // also for a server's Retry-After
  absl::Duration stall = absl::Seconds(30);             // without a byte: the connection is broken
  // Waits; false: give up.
  std::function<bool(absl::Duration)> wait;
  // Told before each wait for another try; may be empty.
  std::function<void(const Retry&)> on_retry;
};

struct RemoteFile {
  std::string url;
  int64_t bytes = -1;     // -1: as the server says
  std::string sha256;     // hexadecimal; empty: not known
  std::string git_blob;   // the hash that git gives it; empty: not known
  int64_t bytes_max = 0;  // more is refused
  FileVersion here;       // of the file that is here, which is kept if the server has no other
};

struct FetchedFile {
  bool unchanged = false;  // the server has what RemoteFile::here names; nothing was brought
  std::string sha256;
  FileVersion version;
};

class Downloader {
 public:
  // `on_progress`: bytes of the file that are here.
  using Progress = std::function<void(int64_t bytes)>;

  static absl::StatusOr<std::unique_ptr<Downloader>> Create(DownloadOptions options);
  virtual ~Downloader() = default;

  // A small text, such as a list. Errors: as Fetch.
  virtual absl::StatusOr<std::string> FetchText(const std::string& url, int64_t bytes_max) = 0;
  // Brings `file` to PartOf(path). Errors name the URL: kNotFound; kPermissionDenied for 401 and
  // 403, naming what to do; kDataLoss when what arrived is not what was promised;
  // kResourceExhausted for too large a file; kCancelled when `wait` said so; kInvalidArgument for
  // another answer without the file, such as 304 to a call that had no `here`; kUnavailable
  // otherwise.
  virtual absl::StatusOr<FetchedFile> Fetch(const RemoteFile& file, const std::string& path,
                                            const Progress& on_progress) = 0;
  static std::string PartOf(const std::string& path) { return path + ".part"; }
  // Gives a file that was brought its own name. Errors: kUnavailable.
  static absl::Status Install(const std::string& path);
  // Removes what was brought of `path`, if anything.
  static void Discard(const std::string& path);
};

}  // namespace tandem::cli
