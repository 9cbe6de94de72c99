#include "cli/pull/pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/pull/download.h"
#include "cli/pull/download_progress.h"
#include "cli/pull/hugging_face.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kListBytesMax = 16 << 20;
constexpr int64_t kFileBytesMax = int64_t{1} << 43;       // of a file whose size is not known
constexpr int64_t kDiskReserveBytes = int64_t{64} << 20;  // left free

// Held while a model is brought.
class FolderLock {
 public:
  static absl::StatusOr<std::unique_ptr<FolderLock>> Take(const std::string& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    const int fd = open(absl::StrCat(folder, "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return absl::ErrnoToStatus(errno, folder);
    std::unique_ptr<FolderLock> lock(new FolderLock(fd));
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": another `tandem pull` is fetching this model"));
  }
  ~FolderLock() { close(fd_); }

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  const int fd_;
};

absl::Status CheckRoom(const std::string& folder, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || static_cast<int64_t>(space.available) >= bytes + kDiskReserveBytes)
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(folder, ": ", BytesText(bytes), " more are needed and ",
                   BytesText(static_cast<int64_t>(space.available)), " are free"));
}

class Puller {
 public:
  Puller(Downloader& downloader, const PullOptions& options, model::StoredModel model)
      : downloader_(downloader), options_(options), model_(std::move(model)) {}

  absl::StatusOr<model::StoredModel> Bring(const std::vector<RepositoryFile>& files) {
    model_.files = model::FilesFetched(model_.folder);
    int64_t bytes = 0, here = 0;
    for (const RepositoryFile& file : files) {
      bytes += std::max<int64_t>(file.remote.bytes, 0);
      here += IsHere(file) ? file.remote.bytes : PartBytes(file);
    }
    RETURN_IF_ERROR(CheckRoom(model_.folder, bytes - here));
    // Until every file is there the model is incomplete: new files may replace some of the old
    // ones.
    RETURN_IF_ERROR(model::WritePartialManifest(model_));
    DownloadProgress progress(bytes, here, options_.progress);
    for (const RepositoryFile& file : files) RETURN_IF_ERROR(BringFile(file, progress));
    RETURN_IF_ERROR(RemoveOthers(files));
    RETURN_IF_ERROR(model::WriteManifest(model_));
    return model_;
  }

 private:
  std::string PathOf(absl::string_view name) const {
    return absl::StrCat(model_.folder, "/", name);
  }

  // -1: there is none.
  static int64_t BytesOf(const std::string& path) {
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    return error ? -1 : static_cast<int64_t>(bytes);
  }

  int64_t PartBytes(const RepositoryFile& file) const {
    return std::max<int64_t>(BytesOf(PathOf(file.name) + ".part"), 0);
  }

  // What was fetched under this name; nullptr: nothing.
  model::StoredFile* Find(const std::string& name) {
    const auto found =
        std::find_if(model_.files.begin(), model_.files.end(),
                     [&](const model::StoredFile& stored) { return stored.name == name; });
    return found == model_.files.end() ? nullptr : &*found;
  }

  // Whether it is here as it was fetched.
  bool IsHere(const RepositoryFile& file) {
    const model::StoredFile* stored = Find(file.name);
    return stored != nullptr && !file.remote.sha256.empty() &&
           stored->sha256 == file.remote.sha256 && stored->bytes == file.remote.bytes &&
           BytesOf(PathOf(file.name)) == stored->bytes;
  }

  absl::Status BringFile(const RepositoryFile& file, DownloadProgress& progress) {
    if (IsHere(file)) return absl::OkStatus();
    const std::string path = PathOf(file.name);
    const int64_t before = PartBytes(file);
    if (model::StoredFile* stale = Find(file.name)) {
      // The new file may be there before the manifest says so.
      stale->sha256.clear();
      RETURN_IF_ERROR(model::WritePartialManifest(model_));
    }
    ASSIGN_OR_RETURN(const std::string sha256,
                     downloader_.Fetch(file.remote, path, [&](int64_t bytes) {
                       progress.Show(file.name, bytes - before);
                     }));
    const int64_t bytes = BytesOf(path);
    if (bytes < 0) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
    progress.FileEnds(bytes - before);
    if (Find(file.name) == nullptr) model_.files.push_back({.name = file.name, .sha256 = ""});
    *Find(file.name) = {.name = file.name, .bytes = bytes, .sha256 = sha256};
    return model::WritePartialManifest(model_);
  }

  // Removes what was fetched earlier and the repository no longer has: it would be read as a part
  // of the model. A file that was not fetched is its owner's.
  absl::Status RemoveOthers(const std::vector<RepositoryFile>& files) {
    std::vector<model::StoredFile> wanted;
    for (const RepositoryFile& file : files) wanted.push_back(*Find(file.name));
    for (const model::StoredFile& stored : model_.files) {
      const auto same = [&](const model::StoredFile& other) { return other.name == stored.name; };
      if (std::any_of(wanted.begin(), wanted.end(), same)) continue;
      std::error_code error;
      fs::remove(PathOf(stored.name), error);
      if (error)
        return absl::UnavailableError(absl::StrCat(PathOf(stored.name), ": ", error.message()));
    }
    model_.files = std::move(wanted);
    return absl::OkStatus();
  }

  Downloader& downloader_;
  const PullOptions& options_;
  model::StoredModel model_;  // its files: all that were fetched, those of an older commit too
};

}  // namespace

absl::StatusOr<model::StoredModel> PullModel(const std::string& name,
                                             const std::map<std::string, std::string>& env,
                                             const PullOptions& options) {
  ASSIGN_OR_RETURN(const model::ModelName parsed, model::ParseModelName(name));
  model::StoredModel stored{.name = name,
                            .commit = "",
                            .folder = absl::StrCat(model::ModelsFolder(env), "/", parsed.folder()),
                            .files = {}};
  ASSIGN_OR_RETURN(const std::unique_ptr<FolderLock> lock, FolderLock::Take(stored.folder));
  DownloadOptions download;
  download.wait = options.wait;
  download.attempts = static_cast<int>(options.attempts);
  if (!parsed.is_repository()) {
    ASSIGN_OR_RETURN(const auto downloader, Downloader::Create(std::move(download)));
    const RepositoryFile file{.name = parsed.file,
                              .remote = {.url = parsed.url, .bytes_max = kFileBytesMax}};
    return Puller(*downloader, options, std::move(stored)).Bring({file});
  }
  ASSIGN_OR_RETURN(const Hub hub, Hub::FromEnvironment(env));
  download.token = hub.token;
  download.token_host = hub.host();
  ASSIGN_OR_RETURN(const auto downloader, Downloader::Create(std::move(download)));
  const absl::StatusOr<std::string> list =
      downloader->FetchText(ListUrl(hub, parsed), kListBytesMax);
  if (list.status().code() == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(absl::StrCat(
        list.status().message(),
        ". Without a network, copy the model's files (config.json, tokenizer.json, *.safetensors, "
        "or one *.gguf) from another machine to a folder and give its path as --model"));
  }
  RETURN_IF_ERROR(list.status());
  ASSIGN_OR_RETURN(const Repository repository, ChooseFiles(hub, parsed, *list));
  stored.commit = repository.commit;
  return Puller(*downloader, options, std::move(stored)).Bring(repository.files);
}

}  // namespace tandem::cli
