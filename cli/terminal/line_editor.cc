#include "cli/terminal/line_editor.h"

#include <histedit.h>
#include <locale.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::cli {
namespace {

// Asks the terminal to put these marks around what it pastes (xterm's mode 2004).
constexpr char kMarkPastes[] = "\033[?2004h";
constexpr char kMarkNoPastes[] = "\033[?2004l";
constexpr char kPasteBegins[] = "\033[200~";
constexpr wchar_t kPasteEnds[] = L"\033[201~";

class LineEditorImpl final : public LineEditor {
 public:
  explicit LineEditorImpl(const LineEditorOptions& options) : options_(options) {}
  ~LineEditorImpl() override {
    if (editor_ != nullptr) el_end(editor_);
    if (history_ != nullptr) history_end(history_);
  }

  absl::Status Init() {
    // Prompts and answers are UTF-8. libedit asks the C library where a character ends.
    ::setlocale(LC_CTYPE, "C.UTF-8");
    editor_ = el_init("tandem", stdin, stdout, stderr);
    history_ = history_init();
    if (editor_ == nullptr || history_ == nullptr) {
      return absl::InternalError("libedit cannot use this terminal");
    }
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLinesMax);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!options_.history_file.empty()) {
      history(history_, &event, H_LOAD, options_.history_file.c_str());
    }
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &Prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_SIGNAL, 1);  // redraws after a new size of the window, and after Ctrl-Z
    // Ctrl-C is a key while a line is edited: `intr=` for the first line, `-intr` for those for
    // which libedit reads the terminal's settings again.
    el_set(editor_, EL_SETTY, "-d", "-intr", nullptr);
    el_set(editor_, EL_SETTY, "-d", "intr=", nullptr);
    // Between lines too: else a Ctrl-C that is typed there would be lost, and what is typed ahead
    // would be shown twice (cli/terminal/interrupt_key.h).
    for (const char* mode : {"-isig", "-icanon", "-echo"})
      el_set(editor_, EL_SETTY, "-x", mode, nullptr);
    Bind("tandem-interrupt", "Gives the line up", &OnInterrupt, {"^C"});
    Bind("tandem-break", "Inserts a line break", &OnLineBreak, {"\033\n", "\033\r"});
    Bind("tandem-paste", "Inserts what is pasted", &OnPaste, {kPasteBegins});
    Bind("tandem-complete", "Completes a command", &OnComplete, {"^I"});
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    return absl::OkStatus();
  }

  TypedLine Read(const std::string& prompt) override {
    prompt_ = prompt;
    interrupted_ = false;
    Put(kMarkPastes);
    int count = 0;
    const char* text = el_gets(editor_, &count);
    Put(kMarkNoPastes);
    TypedLine line;
    if (interrupted_) {
      Put("^C\n");
      return {TypedLine::Kind::kInterrupt, std::move(given_up_)};
    }
    if (text == nullptr || count <= 0) {
      Put("\n");
      return line;
    }
    line = {TypedLine::Kind::kLine, std::string(text, static_cast<size_t>(count))};
    if (!line.text.empty() && line.text.back() == '\n') line.text.pop_back();
    return line;
  }

  void Remember(const std::string& text) override {
    HistEvent event;
    history(history_, &event, H_ENTER, text.c_str());
    if (options_.history_file.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(options_.history_file).parent_path(),
                                        ignored);
    history(history_, &event, H_SAVE, options_.history_file.c_str());
  }

 private:
  using Key = unsigned char (*)(EditLine*, int);

  static LineEditorImpl& Of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<LineEditorImpl*>(self);
  }

  static void Put(const char* text) {
    std::fputs(text, stdout);
    std::fflush(stdout);
  }

  void Bind(const char* name, const char* help, Key function,
            std::initializer_list<const char*> keys) {
    el_set(editor_, EL_ADDFN, name, help, function);
    for (const char* key : keys) el_set(editor_, EL_BIND, key, name, nullptr);
  }

  static char* Prompt(EditLine* editor) { return Of(editor).prompt_.data(); }

  static unsigned char OnInterrupt(EditLine* editor, int) {
    LineEditorImpl& self = Of(editor);
    const LineInfo* line = el_line(editor);
    self.given_up_.assign(line->buffer, line->lastchar);
    // What follows is printed below the whole line.
    const LineInfoW* wide = el_wline(editor);
    el_cursor(editor, static_cast<int>(wide->lastchar - wide->cursor));
    el_set(editor, EL_REFRESH);
    self.interrupted_ = true;
    return CC_EOF;
  }

  static unsigned char OnLineBreak(EditLine* editor, int) {
    return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
  }

  static unsigned char OnPaste(EditLine* editor, int) {
    const std::wstring end = kPasteEnds;
    std::wstring text, tail;  // tail: what may be the start of `end`
    wchar_t c = 0;
    while (tail != end && el_wgetc(editor, &c) == 1) {
      tail.push_back(c);
      while (!absl::StartsWith(Bytes(end), Bytes(tail))) {
        const wchar_t first = tail.front();
        tail.erase(0, 1);
        const bool shown = (first >= 0x20 && first != 0x7F) || first == L'\n' || first == L'\t';
        if (text.size() < kPasteCharactersMax && (shown || first == L'\r')) {
          text.push_back(first == L'\r' ? L'\n' : first);
        }
      }
    }
    return text.empty() || el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  static absl::string_view Bytes(const std::wstring& text) {
    return {reinterpret_cast<const char*>(text.data()), text.size() * sizeof(wchar_t)};
  }

  static unsigned char OnComplete(EditLine* editor, int) {
    const LineInfo* line = el_line(editor);
    const std::string typed(line->buffer, line->cursor);
    std::vector<std::string> matches;
    for (const std::string& command : Of(editor).options_.commands) {
      if (!typed.empty() && absl::StartsWith(command, typed)) matches.push_back(command);
    }
    if (matches.empty()) return CC_ERROR;
    // As far as all of them agree.
    std::string common = matches[0];
    for (const std::string& match : matches) {
      common.resize(std::mismatch(common.begin(), common.end(), match.begin(), match.end()).first -
                    common.begin());
    }
    if (common.size() > typed.size()) {
      el_insertstr(editor, common.c_str() + typed.size());
      return CC_REFRESH;
    }
    if (matches.size() == 1) return CC_ERROR;
    Put(absl::StrCat("\n", absl::StrJoin(matches, "  "), "\n").c_str());
    return CC_REDISPLAY;
  }

  const LineEditorOptions options_;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  std::string prompt_, given_up_;
  bool interrupted_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LineEditor>> LineEditor::Create(const LineEditorOptions& options) {
  auto editor = std::make_unique<LineEditorImpl>(options);
  if (absl::Status status = editor->Init(); !status.ok()) return status;
  return editor;
}

}  // namespace tandem::cli
