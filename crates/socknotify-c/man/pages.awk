# Makes a page of the manual from the headers and the three files here:
#
#     awk -v page=NAME -v version=VERSION -f pages.awk socknotify.h socknotify_owned.h errors examples.c socknotify.3.in
#
# The page of a function has the comment and the declarations that the header has together, the errors that `errors` has
# under its name, and what examples.c has after a comment with its name. The page `socknotify` is socknotify.3.in, with
# the types and constants of the header in place of @TYPES@, and its functions in place of @FUNCTIONS@.

# A text in which nothing is an instruction.
function plain(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/) {
        text = "\\&" text
    }
    return text
}

# The lines of a comment, as paragraphs, lists and listings.
function describe(lines, count, index_, line, is_listing, is_item) {
    for (index_ = 1; index_ <= count; index_ += 1) {
        line = lines[index_]
        if (line ~ /^    / && !is_item && !is_listing) {
            print ".nf"
            is_listing = 1
        } else if (is_listing && line !~ /^    /) {
            print ".fi"
            is_listing = 0
        }
        if (line == "") {
            print ".PP"
            is_item = 0
        } else if (line ~ /^  - /) {
            print ".IP \\(bu 3"
            print plain(substr(line, 5))
            is_item = 1
        } else {
            if (is_item) {
                sub(/^ +/, "", line)
            }
            print plain(line)
        }
    }
    if (is_listing) {
        print ".fi"
    }
}

function head(name) {
    print ".\\\" Made from socknotify.h."
    print ".TH " name " 3 \"\" \"socknotify " version "\" \"Library Functions\""
}

# One declaration or several, and the comment above them.
function end_of_group(    index_, names, about, is_wanted) {
    for (index_ = 1; index_ <= functions; index_ += 1) {
        names = names (index_ > 1 ? ", " : "") function_[index_]
        is_wanted = is_wanted || function_[index_] == page
    }
    about = ""
    for (index_ = 1; index_ <= comments && comment[index_] != ""; index_ += 1) {
        about = about (index_ > 1 ? " " : "") comment[index_]
    }
    sub(/[.:] .*/, "", about)
    sub(/[.:]$/, "", about)
    about = tolower(substr(about, 1, 1)) substr(about, 2)
    summary[++groups] = names
    abstract[groups] = about
    if (is_wanted) {
        head(page)
        print ".SH NAME\n" names " \\- " plain(about)
        print ".SH SYNOPSIS\n.nf\n.B #include <" header ">\n.PP"
        for (index_ = 1; index_ <= declarations; index_ += 1) {
            print plain(declaration[index_])
        }
        print ".fi\n.PP\nLink with \\fI\\-lsocknotify\\fP."
        print ".SH DESCRIPTION"
        describe(comment, comments)
    }
    functions = declarations = comments = 0
}

# Whether a line names this page's function.
function names_page(line,    words, count, index_) {
    count = split(line, words, " ")
    for (index_ = 1; index_ <= count; index_ += 1) {
        if (words[index_] == page) {
            return 1
        }
    }
    return 0
}

# Of socknotify.h what is for Windows comes first, and the names of Windows last.
FNR == 1 && FILENAME ~ /\.h$/ { file = 1; header = FILENAME; sub(/.*\//, "", header) }
FNR == 1 && FILENAME !~ /\.h$/ { file += 1 }
file == 1 && /^\/\* ---- Types and constants/ { section = "types"; next }
file == 1 && /^\/\* ---- Functions/ { section = "functions"; next }
file == 1 && section == "functions" && /^#ifdef/ { section = "" }
file == 1 && section == "types" { types[++type_lines] = $0; next }

file == 1 && section == "functions" {
    if ($0 ~ /^\/\*/) {
        comments = 0
        is_comment = $0 !~ /\*\/$/
        if ($0 != "/*") {
            text = $0
            sub(/^\/\* */, "", text)
            sub(/ *\*\/$/, "", text)
            comment[++comments] = text
        }
    } else if (is_comment) {
        if ($0 ~ /\*\/$/) {
            is_comment = 0
        } else {
            text = $0
            sub(/^ \* ?/, "", text)
            comment[++comments] = text
        }
    } else if ($0 != "") {
        declaration[++declarations] = $0
        if ($0 ~ /^[a-z]/) {
            text = $0
            sub(/\(.*/, "", text)
            sub(/.*[ *]/, "", text)
            function_[++functions] = text
        }
    } else if (functions) {
        end_of_group()
    }
    next
}

# Names, and then each code and what it means.
file == 2 && /^sn_/ {
    is_wanted = names_page($0)
    if (is_wanted && !has_errors) {
        print ".SH ERRORS"
        has_errors = 1
    }
    next
}
file == 2 && !is_wanted { next }
file == 2 && /^@/ { print ".SS " substr($0, 2); next }
file == 2 && /^[A-Z]/ { print ".TP\n.B " plain($0); next }
file == 2 && /^others/ { print ".TP\nothers"; next }
file == 2 && /^  / { print plain(substr($0, 3)); next }

file == 3 && /^\/\* EXAMPLE / {
    is_example = names_page($0)
    if (is_example) {
        print ".SH EXAMPLES\n.nf"
    }
    next
}
file == 3 && /^\/\* END/ {
    if (is_example) {
        print ".fi"
    }
    is_example = 0
    next
}
file == 3 && is_example { print plain($0); next }
file == 4 && FNR == 1 && page != "socknotify" { print ".SH SEE ALSO\n.BR socknotify (3)" }

file == 4 && page == "socknotify" {
    if ($0 == "@TYPES@") {
        print ".nf"
        for (number = 1; number <= type_lines; number += 1) {
            print plain(types[number])
        }
        print ".fi"
    } else if ($0 == "@FUNCTIONS@") {
        for (number = 1; number <= groups; number += 1) {
            print ".TP"
            text = summary[number]
            gsub(/, /, "(3), ", text)
            print ".B " text "(3)"
            print plain(abstract[number])
        }
    } else if ($0 == "@HEAD@") {
        head(page)
    } else {
        print
    }
}
