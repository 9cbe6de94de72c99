#include "cli/batch/batch_run.h"

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/batch/batch_lines.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/runtime/thread.h"

namespace tandem::cli {
namespace {

constexpr char kStandard[] = "-";

bool SameFile(const std::string& a, const std::string& b) {
  struct stat one {
  }, other{};
  return ::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

absl::Status CannotWrite(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("--output ", path, ": cannot be written"));
}

// Reads an earlier run's output, and removes from the file what must be done again. A file that is
// not a regular one, such as a pipe or a device, holds no output.
absl::StatusOr<BatchOutput> RepairOutput(const std::string& path) {
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return BatchOutput();
  std::ifstream file(path, std::ios::binary);
  absl::StatusOr<BatchOutput> output = ReadBatchOutput(file, nullptr);
  if (!output.ok()) {
    return absl::Status(output.status().code(),
                        absl::StrCat("--output ", path, ": ", output.status().message()));
  }
  if (!output->must_be_repaired) return output;
  // By renaming, so that a crash meanwhile loses no answer.
  const std::string repaired = absl::StrCat(path, ".repaired");
  std::ofstream copy(repaired, std::ios::binary);
  file.clear();
  file.seekg(0);
  const absl::Status read = ReadBatchOutput(file, &copy).status();
  copy.close();
  if (!read.ok() || !copy || std::rename(repaired.c_str(), path.c_str()) != 0)
    return CannotWrite(path);
  return output;
}

class Batch {
 public:
  Batch(const BatchOptions& options, Client& client) : options_(options), client_(client) {}

  // Once, before Run: opening a pipe twice would lose what it holds.
  absl::Status OpenInput() {
    if (options_.input == kStandard) {
      std::cin.tie(nullptr);  // a read would flush the output, which another thread may write
      return absl::OkStatus();
    }
    input_file_.open(options_.input, std::ios::binary);
    input_ = &input_file_;
    // A folder can be opened, but not read.
    std::error_code error;
    return input_file_ && !std::filesystem::is_directory(options_.input, error) ? absl::OkStatus()
                                                                                : CannotRead();
  }

  // REQUIRES: at most once. `answered`: by custom_id, the digests of the requests that were.
  absl::StatusOr<BatchCounts> Run(absl::flat_hash_map<std::string, std::string> answered) {
    done_ = std::move(answered);
    if (options_.output != kStandard) {
      output_file_.open(options_.output, std::ios::binary | std::ios::app);
      output_ = &output_file_;
    }
    if (!*output_) return CannotWrite(options_.output);
    RETURN_IF_ERROR(CheckEarlierAnswers());
    {
      std::vector<Thread> threads;
      for (int32_t i = 0; i < options_.concurrency; ++i) {
        threads.emplace_back("batch", [this] { Work(); });
      }
    }
    absl::MutexLock input_lock(&input_mutex_);
    absl::MutexLock lock(&mutex_);
    output_->flush();
    if (!*output_) return CannotWrite(options_.output);
    if (input_->bad()) return CannotRead();
    RETURN_IF_ERROR(changed_);
    return counts_;
  }

 private:
  struct Item {
    std::string line;
    int64_t number = 0;
    std::string name;
    bool name_taken = false;  // by an earlier line
  };

  // Refuses a changed line before any other is sent, where the input can be read twice. Holds one
  // line at a time.
  absl::Status CheckEarlierAnswers() {
    std::error_code error;
    const bool twice =
        options_.input != kStandard && std::filesystem::is_regular_file(options_.input, error);
    if (done_.empty() || !twice) return absl::OkStatus();
    absl::flat_hash_set<std::string> seen;  // of the names in done_
    Item item;
    while (std::getline(input_file_, item.line)) {
      ++item.number;
      if (absl::StripAsciiWhitespace(item.line).empty()) continue;
      item.name = BatchLineName(item.line, item.number);
      const auto done = done_.find(item.name);
      if (done == done_.end() || !seen.insert(item.name).second) continue;
      if (!IsRequestOf(item, done->second)) return Changed(item);
    }
    if (input_file_.bad()) return CannotRead();
    input_file_.clear();
    input_file_.seekg(0);
    return absl::OkStatus();
  }

  // Whether the line is the request with this digest.
  bool IsRequestOf(const Item& item, const std::string& digest) const {
    const absl::StatusOr<BatchRequest> batch =
        ParseBatchLine(item.line, item.number, options_.defaults);
    return batch.ok() && DigestOf(batch->request) == digest;
  }

  void Work() {
    Item item;
    while (Take(item)) {
      const absl::StatusOr<BatchRequest> batch =
          ParseBatchLine(item.line, item.number, options_.defaults);
      if (!batch.ok()) {
        Fail(item.name, item.number, batch.status());
      } else if (item.name_taken) {
        Fail(item.name, item.number,
             absl::InvalidArgumentError(absl::StrCat(
                 "custom_id: \"", item.name, "\" is also an earlier line's, expected its own")));
      } else {
        Answer(*batch, item.number);
      }
    }
  }

  // Whether more lines are to be answered.
  bool GoesOn() {
    absl::MutexLock lock(&mutex_);
    return *output_ && changed_.ok();
  }

  // The next line without an answer. While the input is awaited, answers are written.
  bool Take(Item& item) {
    absl::MutexLock input_lock(&input_mutex_);
    while (GoesOn() && std::getline(*input_, item.line)) {
      item.number = ++number_;
      if (absl::StripAsciiWhitespace(item.line).empty()) continue;
      absl::MutexLock lock(&mutex_);
      ++counts_.lines;
      item.name = BatchLineName(item.line, item.number);
      item.name_taken = !taken_.insert(item.name).second;
      const auto done = done_.find(item.name);
      if (done == done_.end() || item.name_taken) return true;
      if (!IsRequestOf(item, done->second)) {
        changed_ = Changed(item);
        return false;
      }
      ++counts_.skipped;
    }
    return false;
  }

  // An answer to another request must not pass for this one's. To replace it could lose much work
  // for a slip of the command line, so the user decides.
  absl::Status Changed(const Item& item) const {
    const bool numbered = item.name == absl::StrCat("line-", item.number);
    return absl::FailedPreconditionError(absl::StrCat(
        options_.input, ":", item.number, ": \"", item.name, "\" has an answer in ",
        options_.output,
        " to another request: the line or the flags have changed, or an older version wrote it; "
        "expected the same ones, or a new --output",
        numbered ? ". A line without a custom_id is named by its number: add custom_id to lines, "
                   "or keep the line numbers, with an empty line for one that you remove"
                 : ""));
  }

  absl::Status CannotRead() const {
    return absl::NotFoundError(absl::StrCat("--batch ", options_.input, ": cannot be read"));
  }

  void Answer(const BatchRequest& batch, int64_t number) {
    BatchAnswer answer;
    answer.request_digest = DigestOf(batch.request);
    bool others = false;  // answers, which cannot be one line's
    const absl::Status status =
        client_.Generate(batch.request, [&answer, &others](const v1::GenerateResponse& part) {
          others =
              others || part.delta().sequence_index() != 0 || part.finished().sequence_index() != 0;
          if (others) return false;
          if (part.has_finished()) answer.finished = part.finished();
          answer.text += part.delta().text();
          for (const v1::GeneratedToken& token : part.delta().tokens()) {
            answer.tokens.push_back(token.token_id());
          }
          return true;
        });
    if (!status.ok()) return Fail(batch.custom_id, number, status);
    if (others) {
      return Fail(batch.custom_id, number,
                  absl::InvalidArgumentError("the router gave several answers, expected one"));
    }
    if (answer.finished.reason() == v1::FINISH_REASON_ABORTED) {
      return Fail(batch.custom_id, number, absl::AbortedError("the request was aborted"));
    }
    absl::MutexLock lock(&mutex_);
    ++counts_.answered;
    Write(FormatBatchAnswer(batch.custom_id, answer));
  }

  void Fail(const std::string& custom_id, int64_t number, const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    ++counts_.failed;
    std::fprintf(stderr, "%s:%ld: %s\n", options_.input.c_str(), static_cast<long>(number),
                 std::string(status.message()).c_str());
    Write(FormatBatchError(custom_id, number, status));
  }

  void Write(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *output_ << line << std::flush;
  }

  const BatchOptions& options_;
  Client& client_;
  // By custom_id, the digests of requests that an earlier run answered. Not changed by threads.
  absl::flat_hash_map<std::string, std::string> done_;
  absl::Mutex input_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;  // of what is written and counted
  std::ifstream input_file_;
  std::ofstream output_file_;
  std::istream* input_ = &std::cin;    // what it points to: under input_mutex_ once threads run
  std::ostream* output_ = &std::cout;  // likewise under mutex_
  int64_t number_ ABSL_GUARDED_BY(input_mutex_) = 0;
  absl::flat_hash_set<std::string> taken_ ABSL_GUARDED_BY(input_mutex_);  // names
  BatchCounts counts_ ABSL_GUARDED_BY(mutex_);
  absl::Status changed_ ABSL_GUARDED_BY(mutex_);  // a line that is no longer what was answered
};

}  // namespace

absl::StatusOr<BatchCounts> RunBatch(const BatchOptions& given, Client& client) {
  BatchOptions options = given;
  Batch batch(options, client);
  RETURN_IF_ERROR(batch.OpenInput());
  const bool to_file = options.output != kStandard;
  if (to_file) options.output = BehindLinks(options.output);
  if (to_file && options.input != kStandard && SameFile(options.input, options.output)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--output ", options.output, ": expected another file than --batch"));
  }
  RETURN_IF_ERROR(client.GetModel().status());
  BatchOutput earlier;
  if (to_file) {
    ASSIGN_OR_RETURN(earlier, RepairOutput(options.output));
  }
  return batch.Run(std::move(earlier.answered));
}

}  // namespace tandem::cli
