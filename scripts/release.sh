#!/usr/bin/env bash
# Builds a release and tries it: wheel and sdist, metadata, and the demo in a fresh environment.
#
#   scripts/release.sh            everything; the demo trains for its two to five minutes
#   scripts/release.sh --short    the packages of .venv beside the wheel, a demo of two updates
#
# Leaves dist/stepwell-VERSION.* and prints the commands that publish them. It publishes nothing itself.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 0 ] || [ "$*" = "--short" ] || { echo "usage: scripts/release.sh [--short]"; exit 2; }
is_short=${1:+yes}
python=$PWD/.venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
fail() { echo "release: $1" >&2; exit 1; }

[ -x "$python" ] || fail "there is no .venv; run make install first"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/stepwell/__init__.py)
[ -n "$version" ] || fail "src/stepwell/__init__.py has no __version__"
grep -q "^## $version" CHANGELOG.md || fail "CHANGELOG.md has no section '## $version'"
grep -q "^version: $version$" CITATION.cff || fail "CITATION.cff does not say version: $version"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed"

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
git archive HEAD | tar -x -C "$place" --one-top-level=source     # what is committed, and nothing else
(cd "$place/source" && "$python" -m build --no-isolation -o "$place/dist" .) > "$place/build.log" 2>&1 ||
  { tail -n 40 "$place/build.log"; fail "the build failed"; }
"$python" -m twine --version > /dev/null 2>&1 && "$python" -m twine check --strict "$place"/dist/*

"$python" -m venv "$place/venv"
if [ -n "$is_short" ]; then
  purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$python" -c "$purelib" > "$("$place/venv/bin/python" -c "$purelib")/beside.pth"
  "$place/venv/bin/pip" install -q --no-deps "$place"/dist/*.whl
  demo=(train demo name=release eval.num_tasks=4 train.num_updates=2 train.tasks_per_update=4
    warm_start.max_updates=10 warm_start.batch_size=8 warm_start.num_demos=128)
else
  "$place/venv/bin/pip" install -q "$place"/dist/*.whl          # without constraints, as a user does
  demo=(demo)
fi
mkdir "$place/work"
cd "$place/work"
[ "$("$place/venv/bin/stepwell" --version)" = "stepwell $version" ] || fail "the wheel is not version $version"
"$place/venv/bin/python" -c 'import stepwell, sys; sys.exit(not stepwell.__file__.startswith(sys.prefix))' ||
  fail "the demo would not run from the wheel"
"$place/venv/bin/stepwell" "${demo[@]}" > demo.log 2>&1 || { tail -n 40 demo.log; fail "the demo failed"; }
tail -n 1 demo.log
cd - > /dev/null

mkdir -p dist
cp "$place"/dist/* dist/
grep -q '^Repository = ' pyproject.toml ||
  echo "note: pyproject.toml has no [project.urls] Repository: the page on an index has no links and no image"
! grep -q "^## $version (in preparation)" CHANGELOG.md ||
  echo "note: CHANGELOG.md still says that $version is in preparation: put the date there before you publish"
echo "built and tried: dist/stepwell-$version*"
echo "to publish: git tag v$version && git push --tags && $python -m twine upload dist/stepwell-$version*"
