#include "cli/pull/download.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/pull/file_hash.h"
#include "cli/pull/server_reply.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeaderBytesMax = 64 << 10;
constexpr long kRedirectsMax = 5, kConnectSeconds = 20;

struct CurlDelete {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// Takes a reply's body.
class Sink {
 public:
  virtual ~Sink() = default;
  // The first bytes follow. `from`: of the file, where they begin. False ends the call.
  virtual bool Begin(const ServerReply& reply, int64_t from) = 0;
  virtual bool Take(const char* data, size_t bytes) = 0;
};

struct Call {
  CURL* curl = nullptr;
  Sink* sink = nullptr;
  ServerReply reply;
  int64_t from = 0;  // asked for
  int64_t header_bytes = 0;
  bool begun = false;
  const std::function<bool(absl::Duration)>* wait = nullptr;
};

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  auto& call = *static_cast<Call*>(user);
  const size_t bytes = size * count;
  call.header_bytes += static_cast<int64_t>(bytes);
  if (call.header_bytes > kHeaderBytesMax) return 0;
  const absl::string_view line = absl::StripAsciiWhitespace(absl::string_view(data, bytes));
  if (absl::StartsWith(line, "HTTP/"))
    call.reply = ServerReply();  // of a redirection, or the last one
  call.reply.ReadHeader(line);
  return bytes;
}

size_t OnBody(char* data, size_t size, size_t count, void* user) {
  auto& call = *static_cast<Call*>(user);
  const size_t bytes = size * count;
  if (!call.begun) {
    call.begun = true;
    curl_easy_getinfo(call.curl, CURLINFO_RESPONSE_CODE, &call.reply.status);
    // An error's page is not the file.
    if (call.reply.status == 206 || call.reply.status == 200) {
      if (!call.sink->Begin(call.reply, call.reply.status == 206 ? call.from : 0)) return 0;
    } else {
      call.sink = nullptr;
    }
  }
  if (call.sink == nullptr) return bytes;
  return call.sink->Take(data, bytes) ? bytes : 0;
}

int OnTick(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<Call*>(user)->wait)(absl::ZeroDuration()) ? 0 : 1;
}

class TextSink final : public Sink {
 public:
  explicit TextSink(int64_t bytes_max) : bytes_max_(bytes_max) {}
  bool Begin(const ServerReply&, int64_t) override {
    text.clear();
    return true;
  }
  bool Take(const char* data, size_t bytes) override {
    too_large = static_cast<int64_t>(text.size() + bytes) > bytes_max_;
    if (!too_large) text.append(data, bytes);
    return !too_large;
  }
  std::string text;
  bool too_large = false;

 private:
  const int64_t bytes_max_;
};

void RemovePart(const std::string& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
  fs::remove(path + ".etag", ignored);
}

// What a .part file is a part of; it stands beside it.
struct Whole {
  FileVersion version;
  int64_t bytes = -1;  // -1: not known

  // By what a server can tell that it still has this file; empty: by nothing.
  std::string if_range() const {
    return IsStrong(version.etag) ? version.etag : version.last_modified;
  }
};

// The .part file, and beside it the Whole as lines of text.
class PartSink final : public Sink {
 public:
  PartSink(std::string path, int64_t bytes_max, const Downloader::Progress& on_progress)
      : path_(std::move(path)), bytes_max_(bytes_max), on_progress_(on_progress) {}

  // What arrived earlier.
  int64_t have() const {
    std::error_code error;
    const auto bytes = fs::file_size(path_, error);
    return error ? 0 : static_cast<int64_t>(bytes);
  }
  Whole whole() const {
    Whole whole;
    std::ifstream in(path_ + ".etag");
    std::string bytes;
    std::getline(in, whole.version.etag);
    std::getline(in, whole.version.last_modified);
    std::getline(in, bytes);
    if (!absl::SimpleAtoi(bytes, &whole.bytes)) whole.bytes = -1;
    return whole;
  }
  bool Begin(const ServerReply& reply, int64_t from) override {
    bytes_ = from;
    if (reply.status == 206) {
      changed = IsOfAnother(reply, from);
      if (changed) return false;
    }
    if (from == 0) {
      // A server that sends the whole file begins it anew. The old part has to be gone before the
      // lines beside it are another file's.
      Discard();
      const FileVersion version = reply.StrongVersion();
      std::ofstream(path_ + ".etag")
          << version.etag << "\n"
          << version.last_modified << "\n"
          << (reply.status == 206 ? reply.file_bytes : reply.length) << "\n";
    }
    file_.open(path_, std::ios::binary | std::ios::app);
    return !(failed = !file_.is_open());
  }
  bool Take(const char* data, size_t bytes) override {
    bytes_ += static_cast<int64_t>(bytes);
    too_large = bytes_ > bytes_max_;
    if (too_large) return false;
    file_.write(data, static_cast<std::streamsize>(bytes));
    failed = !file_;
    on_progress_(bytes_);
    return !failed;
  }
  // False: what was written may not all be there.
  bool Close() {
    if (file_.is_open()) file_.close();
    return !(failed |= !file_);
  }
  void Discard() { RemovePart(path_); }
  bool too_large = false, failed = false;
  bool changed = false;  // the server sent a part of another file

 private:
  // Whether the part of a file that the server sends does not continue what is here.
  bool IsOfAnother(const ServerReply& reply, int64_t from) const {
    if (reply.range_from != from) return true;
    if (from == 0) return false;
    const Whole kept = whole();
    const auto differ = [](const std::string& a, const std::string& b) {
      return !a.empty() && !b.empty() && a != b;
    };
    return differ(kept.version.etag, reply.version.etag) ||
           differ(kept.version.last_modified, reply.version.last_modified) ||
           (kept.bytes >= 0 && reply.file_bytes >= 0 && kept.bytes != reply.file_bytes);
  }

  const std::string path_;
  const int64_t bytes_max_;
  const Downloader::Progress& on_progress_;
  std::ofstream file_;
  int64_t bytes_ = 0;
};

class CurlDownloader final : public Downloader {
 public:
  CurlDownloader(DownloadOptions options, CURL* curl) : options_(std::move(options)), curl_(curl) {}

  absl::StatusOr<std::string> FetchText(const std::string& url, int64_t bytes_max) override {
    std::string text;
    RETURN_IF_ERROR(Persist([&](bool& gained, std::optional<absl::Duration>& wait) {
      TextSink sink(bytes_max);
      ServerReply reply;
      const absl::Status status = Get(url, {}, sink, reply);
      wait = reply.retry_after;
      gained = false;
      text = std::move(sink.text);
      if (sink.too_large) return TooLarge(url, bytes_max);
      return status;
    }));
    return text;
  }

  absl::StatusOr<FetchedFile> Fetch(const RemoteFile& file, const std::string& path,
                                    const Progress& on_progress) override {
    const std::string part = PartOf(path);
    FetchedFile fetched;
    bool damaged = false;
    RETURN_IF_ERROR(Persist([&](bool& gained, std::optional<absl::Duration>& wait) {
      const absl::Status status =
          FetchPart(file, part, on_progress, gained, fetched.unchanged, wait);
      if (!status.ok() || fetched.unchanged) return status;
      absl::StatusOr<std::string> checked = Check(file, part);
      PartSink sink(part, 0, on_progress);
      if (absl::IsCancelled(checked.status())) return checked.status();
      if (!checked.ok()) {
        sink.Discard();
        // Once more from the beginning; twice is no accident.
        if (std::exchange(damaged, true)) return absl::DataLossError(checked.status().message());
        return absl::UnavailableError(checked.status().message());
      }
      fetched.sha256 = *std::move(checked);
      fetched.version = sink.whole().version;
      return absl::OkStatus();
    }));
    return fetched;
  }

 private:
  // What a call asks for.
  struct Asked {
    int64_t from = 0;      // the first byte of the file
    std::string if_range;  // empty: that range of any file
    FileVersion unless;    // of a file that is not wanted
    // Whether the server may answer 304, that it has no other file than `unless`.
    bool is_conditional() const { return !unless.etag.empty() || !unless.last_modified.empty(); }
  };

  static absl::Status TooLarge(const std::string& url, int64_t bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(url, ": has more than ", bytes_max, " bytes, the limit"));
  }

  // Calls `attempt` until it succeeds, fails for good, or `attempts` in a row gained nothing.
  template <typename Attempt>
  absl::Status Persist(const Attempt& attempt) {
    absl::Duration pause = options_.first_wait;
    for (int in_vain = 0;;) {
      bool gained = false;
      std::optional<absl::Duration> asked;
      const absl::Status status = attempt(gained, asked);
      if (status.code() != absl::StatusCode::kUnavailable) return status;
      if (gained) {
        in_vain = 0;
        pause = options_.first_wait;
      }
      if (++in_vain >= options_.attempts) return status;
      const absl::Duration wait =
          std::min(std::max(pause, asked.value_or(pause)), options_.wait_max);
      if (options_.on_retry) options_.on_retry({status, wait, in_vain + 1, options_.attempts});
      if (!options_.wait(wait)) return absl::CancelledError("interrupted");
      pause *= 2;
    }
  }

  // Where to go on with what `sink` has of `file`.
  static Asked Continue(const RemoteFile& file, PartSink& sink) {
    Asked asked{.from = sink.have(), .if_range = sink.whole().if_range(), .unless = file.here};
    const bool has_hash = !file.sha256.empty() || !file.git_blob.empty();
    const bool too_much = file.bytes >= 0 && asked.from > file.bytes;
    // Of a file without any name for its contents nothing tells what to go on with.
    if (too_much || (asked.if_range.empty() && !has_hash)) {
      sink.Discard();
      asked.from = 0;
    }
    return asked;
  }

  absl::Status FetchPart(const RemoteFile& file, const std::string& part,
                         const Progress& on_progress, bool& gained, bool& unchanged,
                         std::optional<absl::Duration>& wait) {
    PartSink sink(part, file.bytes >= 0 ? file.bytes : file.bytes_max, on_progress);
    const Asked asked = Continue(file, sink);
    if (file.bytes >= 0 && asked.from == file.bytes && asked.from > 0) return absl::OkStatus();
    ServerReply reply;
    const absl::Status status = Get(file.url, asked, sink, reply);
    wait = reply.retry_after;
    const bool written = sink.Close();
    gained = sink.have() > asked.from;
    if (reply.status == 304 && asked.is_conditional()) {
      unchanged = true;
      sink.Discard();
      return absl::OkStatus();
    }
    if (!written)
      return absl::ResourceExhaustedError(absl::StrCat(part, ": cannot be written (disk full?)"));
    if (sink.too_large) {
      sink.Discard();
      if (file.bytes < 0) return TooLarge(file.url, file.bytes_max);
      return absl::DataLossError(absl::StrCat(file.url, ": the server sends more than the ",
                                              file.bytes, " bytes that its list names"));
    }
    // The last try ended after the file's last byte: there is nothing to send.
    const bool is_whole = !asked.if_range.empty() && asked.from == sink.whole().bytes;
    if (status.code() == absl::StatusCode::kOutOfRange && is_whole) return absl::OkStatus();
    if (sink.changed || status.code() == absl::StatusCode::kOutOfRange) {
      sink.Discard();
      gained = false;
      return absl::UnavailableError(
          sink.changed ? absl::StrCat(file.url, ": the server has another file than before")
                       : std::string(status.message()));
    }
    RETURN_IF_ERROR(status);
    return CheckSize(file, sink);
  }

  // Whether `sink` has as many bytes as were promised.
  static absl::Status CheckSize(const RemoteFile& file, PartSink& sink) {
    const int64_t bytes = sink.have(), promised = sink.whole().bytes;
    if (file.bytes >= 0 && bytes < file.bytes) {
      sink.Discard();
      return absl::DataLossError(absl::StrCat(file.url, ": the server has ", bytes,
                                              " bytes, and its list names ", file.bytes));
    }
    if (bytes >= promised) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(file.url, ": the server sent ", bytes, " bytes and promised ", promised));
  }

  absl::StatusOr<std::string> Check(const RemoteFile& file, const std::string& part) const {
    ASSIGN_OR_RETURN(const FileHashes hashes,
                     HashFile(part, [this] { return options_.wait(absl::ZeroDuration()); }));
    if (!file.sha256.empty() && hashes.sha256 != file.sha256) {
      return absl::DataLossError(
          absl::StrCat(file.url, ": has SHA-256 ", hashes.sha256, ", expected ", file.sha256));
    }
    if (!file.git_blob.empty() && hashes.git_blob != file.git_blob) {
      return absl::DataLossError(
          absl::StrCat(file.url, ": has git hash ", hashes.git_blob, ", expected ", file.git_blob));
    }
    return hashes.sha256;
  }

  // One call. kUnavailable: it may succeed later.
  absl::Status Get(const std::string& url, const Asked& asked, Sink& sink, ServerReply& reply) {
    CURL* curl = curl_.get();
    curl_easy_reset(curl);
    Call call{.curl = curl, .sink = &sink, .reply = {}, .from = asked.from, .wait = &options_.wait};
    const auto headers = HeadersOf(asked);
    if (asked.from > 0)
      curl_easy_setopt(curl, CURLOPT_RANGE, absl::StrCat(asked.from, "-").c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    SetUp(url);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &call);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &call);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, OnTick);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &call);
    const CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &call.reply.status);
    reply = call.reply;
    if (code == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("interrupted");
    if (code == CURLE_OK && call.reply.status == 200 && !call.begun) {
      // An empty file.
      if (!sink.Begin(call.reply, 0)) return absl::UnavailableError(url);
    }
    return StatusOf(url, code, call.reply.status);
  }

  static std::unique_ptr<curl_slist, CurlDelete> HeadersOf(const Asked& asked) {
    std::unique_ptr<curl_slist, CurlDelete> headers;
    const auto add = [&](absl::string_view name, const std::string& value) {
      if (value.empty()) return;
      headers.reset(curl_slist_append(headers.release(), absl::StrCat(name, ": ", value).c_str()));
    };
    if (asked.from > 0) add("If-Range", asked.if_range);
    add("If-None-Match", asked.unless.etag);
    if (asked.unless.etag.empty()) add("If-Modified-Since", asked.unless.last_modified);
    return headers;
  }

  // What is the same for all calls.
  void SetUp(const std::string& url) {
    CURL* curl = curl_.get();
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "tandem");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kRedirectsMax);
    // An address of https never leads to http.
    const char* protocols = absl::StartsWith(url, "https://") ? "https" : "http,https";
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, protocols);
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME,
                     static_cast<long>(std::max<int64_t>(1, options_.stall / absl::Seconds(1))));
    if (!options_.token.empty() && IsTokenHost(url)) {
      // libcurl sends it to the first host only.
      curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
    }
  }

  bool IsTokenHost(absl::string_view url) const {
    url.remove_prefix(std::min(url.size(), url.find("://") + 3));
    return url.substr(0, url.find('/')) == options_.token_host;
  }

  absl::Status StatusOf(const std::string& url, CURLcode code, long status) const {
    if (status == 401 || status == 403) {
      return absl::PermissionDeniedError(absl::StrCat(
          url, ": the server answered ", status,
          options_.token.empty()
              ? "; if the model asks for it, accept its terms on its page and set HF_TOKEN"
              : "; the token that was sent may not read it"));
    }
    if (status == 404) return absl::NotFoundError(absl::StrCat(url, ": the server answered 404"));
    if (status == 416)
      return absl::OutOfRangeError(absl::StrCat(url, ": the server does not have that range"));
    if (status >= 400 && status != 408 && status != 429 && status < 500)
      return absl::InvalidArgumentError(absl::StrCat(url, ": the server answered ", status));
    if (status >= 400)
      return absl::UnavailableError(absl::StrCat(url, ": the server answered ", status));
    if (code == CURLE_OK && status != 200 && status != 206) {
      return absl::InvalidArgumentError(
          absl::StrCat(url, ": the server answered ", status, ", expected 200 or 206"));
    }
    if (code == CURLE_OK) return absl::OkStatus();
    if (code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL)
      return absl::FailedPreconditionError(absl::StrCat(url, ": ", curl_easy_strerror(code)));
    return absl::UnavailableError(absl::StrCat(url, ": ", curl_easy_strerror(code)));
  }

  const DownloadOptions options_;
  const std::unique_ptr<CURL, CurlDelete> curl_;
};

}  // namespace

absl::Status Downloader::Install(const std::string& path) {
  std::error_code error;
  fs::rename(PartOf(path), path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  fs::remove(PartOf(path) + ".etag", error);
  return absl::OkStatus();
}

void Downloader::Discard(const std::string& path) { RemovePart(PartOf(path)); }

absl::StatusOr<std::unique_ptr<Downloader>> Downloader::Create(DownloadOptions options) {
  CURL* curl = curl_easy_init();
  if (curl == nullptr) return absl::InternalError("libcurl cannot be used");
  return std::make_unique<CurlDownloader>(std::move(options), curl);
}

}  // namespace tandem::cli
