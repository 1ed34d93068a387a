/* Two loops of the protocol, which the pure build has in Python:
 *
 *   next_command(known, numbered, data, pos, limit)  codec.next_command_in_python
 *   cut(data, max_payload, last_kind)                link_frames.cut_in_python
 *
 * For a delete, next_command takes 0.1 us instead of 0.4. It keeps recent results for lines that are in known, since
 * clients repeat such lines. forget() drops these results; call it when known changes, other than by a new line.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_DIGITS 19 /* of a number that fits in 64 bits */
#define HEADER_SIZE 9
#define RECENT 64 /* results that next_command keeps */

static PyObject *recent[RECENT]; /* tuples of a line in known and its command, each at the position of recent_of */

/* Return the position of the CRLF in *size* bytes, or -1. */
static Py_ssize_t
find_end(const char *bytes, Py_ssize_t size)
{
    for (Py_ssize_t at = 0; at < size - 1; at++) {
        const char *found = memchr(bytes + at, '\r', (size_t)(size - 1 - at));
        if (found == NULL)
            return -1;
        if (found[1] == '\n')
            return found - bytes;
        at = found - bytes;
    }
    return -1;
}

/* Return the command of a verb of *verbs* and a number, NULL without an exception if *size* bytes are none. */
static PyObject *
numbered_command(PyObject *verbs, const char *bytes, Py_ssize_t size)
{
    const char *space = memchr(bytes, ' ', (size_t)size), *end = bytes + size;
    if (space == NULL || space + 1 == end || end - space > MAX_DIGITS + 1)
        return NULL;
    uint64_t number = 0;
    for (const char *digit = space + 1; digit < end; digit++) {
        if (*digit < '0' || *digit > '9')
            return NULL;
        number = number * 10 + (uint64_t)(*digit - '0');
    }
    for (Py_ssize_t at = 0; at + 1 < PyTuple_GET_SIZE(verbs); at += 2) {
        PyObject *word = PyTuple_GET_ITEM(verbs, at);
        if (!PyBytes_Check(word) || PyBytes_GET_SIZE(word) != space - bytes ||
            memcmp(PyBytes_AS_STRING(word), bytes, (size_t)(space - bytes)) != 0)
            continue;
        PyObject *argument = PyLong_FromUnsignedLongLong(number);
        if (argument == NULL)
            return NULL;
        PyObject *command = PyTuple_Pack(2, PyTuple_GET_ITEM(verbs, at + 1), argument);
        Py_DECREF(argument);
        return command;
    }
    return NULL;
}

/* Return the position in *recent* for a line of *size* bytes. */
static PyObject **
recent_of(const char *bytes, Py_ssize_t size)
{
    uint32_t hash = 0;
    for (Py_ssize_t at = 0; at < size; at++)
        hash = hash * 31 + (unsigned char)bytes[at];
    return &recent[hash % RECENT];
}

static int
has_line(PyObject *found, const char *bytes, Py_ssize_t size)
{
    PyObject *line = PyTuple_GET_ITEM(found, 0);
    return PyBytes_GET_SIZE(line) == size && memcmp(PyBytes_AS_STRING(line), bytes, (size_t)size) == 0;
}

static PyObject *
forget(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    for (int at = 0; at < RECENT; at++)
        Py_CLEAR(recent[at]);
    Py_RETURN_NONE;
}

static PyObject *
next_command(PyObject *Py_UNUSED(self), PyObject *const *arguments, Py_ssize_t number)
{
    if (number != 5 || !PyDict_Check(arguments[0]) || !PyTuple_Check(arguments[1]) || !PyBytes_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "next_command needs a dict, a tuple, bytes, a position and a limit");
        return NULL;
    }
    Py_ssize_t pos = PyLong_AsSsize_t(arguments[3]), limit = PyLong_AsSsize_t(arguments[4]);
    if ((pos == -1 || limit == -1) && PyErr_Occurred())
        return NULL;
    Py_ssize_t size = PyBytes_GET_SIZE(arguments[2]);
    if (pos < 0 || pos > size || limit < 0) {
        PyErr_SetString(PyExc_ValueError, "the position is outside of the data, or the limit is negative");
        return NULL;
    }
    const char *bytes = PyBytes_AS_STRING(arguments[2]) + pos;
    Py_ssize_t end = find_end(bytes, size - pos < limit ? size - pos : limit);
    if (end < 0)
        Py_RETURN_NONE;
    PyObject **kept = NULL, *command = numbered_command(arguments[1], bytes, end);
    if (command == NULL) {
        if (PyErr_Occurred())
            return NULL;
        kept = recent_of(bytes, end);
        if (*kept != NULL && has_line(*kept, bytes, end))
            return Py_NewRef(*kept);
    }
    PyObject *line = PyBytes_FromStringAndSize(bytes, end), *found = NULL;
    if (line != NULL && command == NULL)
        command = Py_XNewRef(PyDict_GetItemWithError(arguments[0], line));
    if (command == NULL)
        kept = NULL;
    if (!PyErr_Occurred())
        found = PyTuple_Pack(2, line, command == NULL ? Py_None : command);
    if (kept != NULL && found != NULL)
        Py_XSETREF(*kept, Py_NewRef(found));
    Py_XDECREF(line);
    Py_XDECREF(command);
    return found;
}

static inline uint32_t
little_endian(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Return a frame as kind, channel and payload. */
static PyObject *
make_frame(int kind, uint32_t channel, const unsigned char *payload, Py_ssize_t size)
{
    PyObject *frame = PyTuple_New(3);
    if (frame == NULL)
        return NULL;
    PyObject *items[] = {
        PyLong_FromLong(kind),
        PyLong_FromUnsignedLong(channel),
        PyBytes_FromStringAndSize((const char *)payload, size),
    };
    for (int at = 0; at < 3; at++)
        PyTuple_SET_ITEM(frame, at, items[at]);
    if (items[0] == NULL || items[1] == NULL || items[2] == NULL)
        Py_CLEAR(frame);
    return frame;
}

static PyObject *
cut(PyObject *Py_UNUSED(self), PyObject *const *arguments, Py_ssize_t number)
{
    if (number != 3 || !PyBytes_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "cut needs bytes and two limits");
        return NULL;
    }
    long max_payload = PyLong_AsLong(arguments[1]), last_kind = PyLong_AsLong(arguments[2]);
    if ((max_payload == -1 || last_kind == -1) && PyErr_Occurred())
        return NULL;
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(arguments[0]);
    Py_ssize_t pos = 0, size = PyBytes_GET_SIZE(arguments[0]);
    PyObject *frames = PyList_New(0);
    if (frames == NULL)
        return NULL;
    while (size - pos >= HEADER_SIZE) {
        Py_ssize_t length = (Py_ssize_t)little_endian(bytes + pos);
        int kind = bytes[pos + 4];
        if (length > max_payload || kind == 0 || kind > last_kind) {
            PyErr_Format(PyExc_ValueError, "frame of kind %d with %zd bytes", kind, length);
            goto failed;
        }
        if (size - pos - HEADER_SIZE < length)
            break;
        PyObject *frame = make_frame(kind, little_endian(bytes + pos + 5), bytes + pos + HEADER_SIZE, length);
        int result = frame == NULL ? -1 : PyList_Append(frames, frame);
        Py_XDECREF(frame);
        if (result < 0)
            goto failed;
        pos += HEADER_SIZE + length;
    }
    return Py_BuildValue("(Nn)", frames, pos);
failed:
    Py_DECREF(frames);
    return NULL;
}

static PyMethodDef methods[] = {
    {"next_command", (PyCFunction)(void (*)(void))next_command, METH_FASTCALL, "See codec.next_command_in_python."},
    {"forget", forget, METH_NOARGS, "Forget what next_command has kept."},
    {"cut", (PyCFunction)(void (*)(void))cut, METH_FASTCALL, "See link_frames.cut_in_python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_scan",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__scan(void)
{
    return PyModule_Create(&module);
}
